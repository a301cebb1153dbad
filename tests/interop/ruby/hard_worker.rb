# The same job for real Sidekiq workers: `sidekiq -r ./hard_worker.rb`, with REDIS_URL set.
require "json"
require "sidekiq"

Sidekiq.configure_server { |config| config.redis = {url: ENV["REDIS_URL"]} }
Sidekiq.configure_client { |config| config.redis = {url: ENV["REDIS_URL"]} }

class HardWorker
  include Sidekiq::Worker

  def perform(ledger, name, doing = "run", *rest)
    gate = File.join(File.dirname(ledger), "#{name}.gate")
    if doing == "wait"
      note(ledger, name, "start", rest)
      sleep 0.005 until File.exist?(gate)
    elsif doing == "fail" && !File.exist?(gate)
      note(ledger, name, "fail", rest)
      raise ArgumentError, "#{name} isn't ready"
    end
    note(ledger, name, "end", rest)
  end

  def note(ledger, name, word, rest)
    File.open(ledger, "a") do |file|
      file.flock(File::LOCK_EX)
      file.write(JSON.generate({word: word, name: name, by: "sidekiq", mid: jid, rest: rest}) + "\n")
    end
  end
end
