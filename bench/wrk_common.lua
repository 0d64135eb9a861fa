-- What the scripts of this folder share: one random sequence per thread, the same in
-- every run, and a line of figures at the end that load.py reads.

local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

-- Bytes that do not repeat soon, made in one piece per thread.
function random_bytes(length)
   local bytes = {}
   for i = 1, length do
      bytes[i] = string.char(math.random(0, 255))
   end
   return table.concat(bytes)
end

-- Returns a function that draws 0 .. keys-1: all alike, or by Zipf's law with an exponent.
function drawing(keys, exponent)
   if exponent == 0 then
      return function() return math.random(0, keys - 1) end
   end
   local sums, sum = {}, 0
   for rank = 1, keys do
      sum = sum + rank ^ -exponent
      sums[rank] = sum
   end
   return function()
      local wanted, low, high = math.random() * sum, 1, keys
      while low < high do
         local middle = math.floor((low + high) / 2)
         if sums[middle] < wanted then low = middle + 1 else high = middle end
      end
      return low - 1
   end
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
