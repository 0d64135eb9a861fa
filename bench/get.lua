-- GETs of keys at random, or in turn. Prints the figures as JSON.
--
--     wrk -t 1 -c 20 -d 10s -s bench/get.lua http://127.0.0.1:1234 -- WHAT [turn]
--
-- WHAT is a number of keys, from k0; a path, such as /-/metrics; or a file with a path in
-- each line. An answer that is no value counts as failed.

function init(args)
   local count, name = tonumber(args[1]), args[1]
   gets, at, in_turn = {}, 0, args[2] == "turn"
   if count then
      for n = 0, count - 1 do
         gets[#gets + 1] = wrk.format("GET", "/k" .. n)
      end
   elseif name:match("^/%-/") then
      gets[1] = wrk.format("GET", name)
   else
      for path in io.lines(name) do
         gets[#gets + 1] = wrk.format("GET", path)
      end
   end
end

function request()
   at = in_turn and at % #gets + 1 or math.random(#gets)
   return gets[at]
end

-- wrk calls this once; times are in microseconds.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "micros": %d, "p50": %d, "p99": %d, "p999": %d, "max": %d, '
         .. '"hot": 0, "failed": %d}\n',
      summary.requests, summary.duration, latency:percentile(50),
      latency:percentile(99), latency:percentile(99.9), latency.max,
      errors.connect + errors.read + errors.write + errors.timeout + errors.status))
end
