# Sidekiq of Debian: 10 threads (its default), Ruby's JIT, the hiredis driver. Quiet means no logging, not even the calls that would log.
#
# Swept, jobs/s of one process and of two, the better of two runs on a machine with some other work: threads 1 20,200 / 20,900,
# 2 16,100 / 26,600, 5 21,500 / 29,600, 10 18,900 / 33,200, 25 19,000 / 32,000; hiredis 22,300 / 32,600, plain Ruby 18,200 / 25,000;
# JIT in 32 MB 22,000 / 35,200, in its 256 MB 19,400 / 33,400, none 17,800 / 29,400. The JIT gets 32 MB: it touches all that it is given.
#
# BRPOP takes a job out of Redis before it runs: a killed process loses it. A worker is one process of so many threads, so
# several are several. Bulk is `push_bulk`, 1,000 at once as its documents advise. The same actions and replies as
# bench/peers/inside.py, and the same handlers as bench/peers/handlers.py.
require "json"
require "sidekiq"

ROOT = File.expand_path("../..", __dir__)
EXAMPLE = [12_345, "short text"].freeze
PER_CALL, STUCK_S, WAIT_S = 1_000, 600, ENV.fetch("BENCH_WAIT_S", "0.02").to_f
PAUSE_S, POLL_S, TICK_S, ALL_S, WARM_SHARE = 0.01, 0.002, 0.002, 2.0, 0.25
FIRST_S, NEXT_S = 60, 10
CONCURRENCY = ENV.fetch("BENCH_CONCURRENCY", "10")
PORT = ENV.fetch("BENCH_PORT", "")
SERVER = PORT.empty? ? {path: ENV.fetch("BENCH_SOCKET")} : {host: "127.0.0.1", port: PORT.to_i}
REDIS = {**SERVER, driver: ENV.fetch("BENCH_DRIVER", "hiredis").to_sym}.freeze

def monotonic_ns = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
def monotonic = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# A thread's own eight bytes of the shared file: nobody else writes there.
class Slot
  def self.mine = Thread.current[:bench_slot] ||= new

  def initialize
    @count = 0
    @file = File.open(ENV.fetch("BENCH_PROGRESS"), "r+b")
    @file.flock(File::LOCK_EX)
    @index = @file.pread(8, 0).unpack1("Q") + 1
    @file.pwrite([@index].pack("Q"), 0)
    @file.flock(File::LOCK_UN)
  end

  def done
    @count += 1
    @file.pwrite([@count].pack("Q"), @index * 8)
  end
end

LEDGER = File.open(ENV.fetch("BENCH_LEDGER"), "ab")
LEDGER.sync = true

class Noop
  include Sidekiq::Worker
  def perform(*) = Slot.mine.done
end

class Spin
  include Sidekiq::Worker
  def used = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)

  def perform
    limit = used + 1_000_000
    nil while used < limit
    Slot.mine.done
  end
end

class Wait
  include Sidekiq::Worker
  def perform(*)
    sleep WAIT_S
    Slot.mine.done
  end
end

class PickedUp
  include Sidekiq::Worker
  def perform(sent) = LEDGER.syswrite("#{monotonic_ns - sent}\n")
end

class Stuck
  include Sidekiq::Worker
  def perform
    first = File.size(LEDGER.path).zero?
    LEDGER.syswrite("#{monotonic_ns} #{Process.pid}\n")
    sleep STUCK_S if first
  end
end

JOBS = {"noop" => Noop, "spin" => Spin, "wait" => Wait, "picked_up" => PickedUp, "stuck" => Stuck}.freeze

class Silent
  def initialize(*) = nil
  def call(*) = yield
  def prepare(*) = yield
end

QUIET = !ENV["BENCH_LOGS"]
Sidekiq.logger.level = Logger::WARN if QUIET
Sidekiq.configure_server do |config|
  config.redis = REDIS
  config.options[:job_logger] = Silent if QUIET
end
Sidekiq.configure_client { |config| config.redis = REDIS.merge(size: 1) }

def many(job, arguments, count, options = {})
  count.step(1, -PER_CALL) do |left|
    Sidekiq::Client.push_bulk({"class" => job, "args" => Array.new([left, PER_CALL].min) { arguments }, **options})
  end
end

def seconds
  started = monotonic
  yield
  monotonic - started
end

def written(lines, within)
  deadline, known = monotonic + within, 0
  File.open(LEDGER.path, "rb") do |ledger|
    loop do
      known += (ledger.read || "").count("\n")
      return if known >= lines
      raise "#{known} of #{lines} jobs were picked up" if monotonic > deadline
      sleep POLL_S
    end
  end
end

def waits = File.readlines(LEDGER.path).map(&:to_i)

def singles(count)
  enough = monotonic + ALL_S
  count.times do |index|
    PickedUp.perform_async(monotonic_ns)
    written(index + 2, NEXT_S)
    sleep PAUSE_S
    break if monotonic > enough
  end
  waits.drop(1)
end

def offered(rate, duration, before)
  started, sent = monotonic, 0
  while (now = monotonic) < started + duration
    due = ((now - started) * rate).to_i + 1 - sent
    if due > 0
      due == 1 ? PickedUp.perform_async(monotonic_ns) : many(PickedUp, [monotonic_ns], due)
      sent += due
    end
    sleep (started + (sent + 1) / rate - monotonic).clamp(0.0, TICK_S)
  end
  written(before + sent, FIRST_S)
  waits.drop(before + (sent * WARM_SHARE).to_i)
end

def latency(count, rate, duration)
  PickedUp.perform_async(monotonic_ns)
  written(1, FIRST_S)
  sleep 0.3
  idle = singles(count)
  [idle, offered(rate, duration, 1 + idle.size)]
end

def act(action, first, second, third)
  case action
  when "worker"
    jit = ENV.fetch("BENCH_JIT", "--yjit --yjit-exec-mem-size=32")
    Array.new(first.to_i) do
      ["env", "RUBYOPT=#{jit}", "sidekiq", "-q", "bench", "-c", CONCURRENCY, "-e", "production", "-r", File.expand_path(__FILE__)]
    end
  when "rates"
    Noop.perform_async
    [seconds { first.to_i.times { Noop.perform_async } }, seconds { many(Noop, [], second.to_i) }]
  when "fill" then many(JOBS.fetch(first), [], second.to_i)
  when "queued" then many(Noop, EXAMPLE, first.to_i)
  when "later" then many(Noop, EXAMPLE, first.to_i, "at" => Time.now.to_f + 3600)
  when "latency" then latency(first.to_i, second.to_f, third.to_f)
  end
end

JOBS.each_value { |job| job.sidekiq_options(queue: "bench") }
# The worker loads this file for its jobs; run by itself it acts.
if $PROGRAM_NAME == __FILE__
  reply = act(*ARGV.values_at(0, 1, 2, 3))
  puts JSON.generate(reply)
end
