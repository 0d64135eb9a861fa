-- GETs of random paths of a file, with the number of answers by status.
--
--     wrk -t 1 -c 64 -d 5s -s bench/hung.lua http://127.0.0.1:8080 -- FILE

local thread

function setup(one)
   thread = one
end

function init(args)
   gets = {}
   for path in io.lines(args[1]) do
      gets[#gets + 1] = wrk.format("GET", path)
   end
   ok, misses, refused, others = 0, 0, 0, 0
end

function request()
   return gets[math.random(#gets)]
end

function response(status)
   if status == 200 then
      ok = ok + 1
   elseif status == 404 then
      misses = misses + 1
   elseif status == 503 then
      refused = refused + 1
   else
      others = others + 1
   end
end

-- wrk calls this once; times are in microseconds.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      'figures {"ok": %d, "misses": %d, "refused": %d, "failed": %d, "micros": %d, '
         .. '"p50": %d, "p99": %d}\n',
      thread:get("ok"), thread:get("misses"), thread:get("refused"),
      thread:get("others") + errors.connect + errors.read + errors.write,
      summary.duration, latency:percentile(50), latency:percentile(99)))
end
