# Sidekiq's client and API for the tests: a line of JSON in, a line of JSON out.
require "json"
require "sidekiq"
require "sidekiq/api"
require "sidekiq/web"
require_relative "hard_worker"

if ARGV[0]
  require "redis-namespace"
  Sidekiq.configure_client { |config| config.redis = {url: ENV["REDIS_URL"], namespace: ARGV[0]} }
end

def shown(entry)
  {class: entry.klass, jid: entry.jid, args: entry.args, item: entry.item, tags: entry.tags,
   queue: entry.queue, created_at: entry.created_at.to_f, enqueued_at: entry.enqueued_at&.to_f}
end

SETS = {"dead" => Sidekiq::DeadSet, "retry" => Sidekiq::RetrySet, "schedule" => Sidekiq::ScheduledSet}

VERBS = {
  "async" => ->(a) { HardWorker.set(a["options"] || {}).perform_async(*a["args"]) },
  "in" => ->(a) { HardWorker.set(a["options"] || {}).perform_in(a["seconds"], *a["args"]) },
  "bulk" => ->(a) { Sidekiq::Client.push_bulk({"class" => "HardWorker", "queue" => "default"}.merge(a["fields"])) },
  "push" => ->(a) { Sidekiq::Client.push(a["fields"]) },
  "set" => ->(a) { SETS[a["name"]].new.map { |entry| shown(entry).merge(at: entry.at.to_f) } },
  "retry" => ->(a) { SETS[a["name"]].new.to_a.each(&:retry).size },
  "reschedule" => ->(a) { SETS[a["name"]].new.to_a.each { |entry| entry.reschedule(Time.now.to_f - 1) }.size },
  "add_to_queue" => ->(a) { SETS[a["name"]].new.to_a.each(&:add_to_queue).size },
  "queue" => ->(a) { Sidekiq::Queue.new(a["name"]).map { |entry| shown(entry) } },
  "queues" => ->(_) { Sidekiq::Queue.all.map(&:name) },
  "processes" => ->(_) {
    Sidekiq::ProcessSet.new.map { |one|
      {identity: one.identity, queues: one["queues"], busy: one["busy"], stopping: one.stopping?, rss: one["rss"],
       concurrency: one["concurrency"], pid: one["pid"], tag: one.tag, labels: one.labels}
    }
  },
  "quiet" => ->(_) { Sidekiq::ProcessSet.new.to_a.each(&:quiet!).size },
  "stop" => ->(_) { Sidekiq::ProcessSet.new.to_a.each(&:stop!).size },
  "work" => ->(_) { Sidekiq::Workers.new.map { |process, thread, work| [process, thread, work] } },
  "page" => ->(a) {
    page = Rack::MockRequest.new(Sidekiq::Web.new).get(a["path"], "rack.session" => {})
    {status: page.status, body: page.body}
  },
  "stats" => ->(_) {
    stats = Sidekiq::Stats.new
    {processed: stats.processed, failed: stats.failed, processes: stats.processes_size, busy: stats.workers_size,
     dead: stats.dead_size, enqueued: stats.enqueued, retries: stats.retry_size, scheduled: stats.scheduled_size}
  }
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
