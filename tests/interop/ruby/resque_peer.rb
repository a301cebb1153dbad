# The real Resque's client, API and worker for the tests: a line of JSON in, a line of JSON out.
require "json"
require "resque"

Resque.redis = Redis.new(path: ARGV[0])

class HardWorker
  @queue = :low

  def self.perform(ledger, name, doing = "run", *rest)
    raise ArgumentError, "#{name} isn't ready" if doing == "fail"

    File.open(ledger, "a") do |file|
      file.flock(File::LOCK_EX)
      file.write(JSON.generate({word: "end", name: name, by: "resque", rest: rest}) + "\n")
    end
  end
end

VERBS = {
  "enqueue" => ->(a) { Resque::Job.create(a["queue"], a["class"], *a["args"]) },
  "queued" => ->(a) { Array(Resque.peek(a["queue"], 0, 1000)) },
  "queues" => ->(_) { Resque.queues },
  "workers" => ->(_) { Resque.workers.map { |one| {id: one.to_s, queues: one.queues, pid: one.pid, state: one.state} } },
  "working" => ->(_) { Resque.working.map { |one| one.job } },
  "expired" => ->(_) { Resque::Worker.all_workers_with_expired_heartbeats.map(&:to_s) },
  "stats" => ->(_) { {processed: Resque.info[:processed], failed: Resque.info[:failed]} },
  "failed" => ->(_) { Array(Resque::Failure.all(0, 100)) },
  "retry" => ->(a) { Resque::Failure.requeue(a["index"]) && true },
  "work" => ->(a) { Resque::Worker.new(a["queue"]).work(0) && true }
}

$stdout.sync = true
$stdin.each_line do |line|
  asked = JSON.parse(line)
  begin
    puts JSON.generate({result: VERBS.fetch(asked["do"]).call(asked)})
  rescue => error
    puts JSON.generate({error: "#{error.class}: #{error.message}"})
  end
end
