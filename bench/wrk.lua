-- Random keys k0 .. k<KEYS-1>: GETs, or PUTs of VALUE_BYTES bytes in PUTS of 100 requests.
--
--     wrk -t 1 -c 20 -d 5s -s bench/wrk.lua http://127.0.0.1:1234 -- KEYS [PREFIX [PUTS VALUE_BYTES]]
--
-- PREFIX replaces the k; "none" makes keys that are not stored. Each thread draws the same
-- sequence in each run. load.py reads the line "figures" at the end.

local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

function init(args)
   keys = tonumber(args[1]) or 40000
   prefix = args[2] or "k"
   puts = tonumber(args[3]) or 0
   local bytes = {}
   math.randomseed(number + 1)
   for i = 1, tonumber(args[4]) or 0 do
      bytes[i] = string.char(math.random(0, 255))
   end
   tail = " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port .. "\r\nContent-Length: "
      .. #bytes .. "\r\n\r\n" .. table.concat(bytes)
   -- Built in advance, so that wrk only has to pick one.
   gets = {}
   for k = 0, keys - 1 do
      gets[k] = wrk.format("GET", "/" .. prefix .. k)
   end
end

function request()
   local key = math.random(0, keys - 1)
   if puts == 0 or (puts < 100 and math.random(1, 100) > puts) then
      return gets[key]
   end
   return "PUT /" .. prefix .. key .. tail
end

-- wrk calls this once; times are in microseconds.
function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      'figures {"requests": %d, "micros": %d, "p50": %d, "p99": %d, "p999": %d, '
         .. '"max": %d, "status": %d, "failed": %d}\n',
      summary.requests, summary.duration, latency:percentile(50),
      latency:percentile(99), latency:percentile(99.9), latency.max, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout))
end
