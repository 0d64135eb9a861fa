-- GET of random keys k0 .. k<N-1>.
--
--     wrk -t 1 -c 20 -d 5s -s bench/wrk_get.lua http://127.0.0.1:1234 -- 40000
--
-- Every thread draws its own sequence, the same in every run.

local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

function init(args)
   keys = tonumber(args[1]) or 40000
   math.randomseed(number + 1)
   -- Made once: what wrk does per request is to pick one.
   requests = {}
   for k = 0, keys - 1 do
      requests[k] = wrk.format("GET", "/k" .. k)
   end
end

function request()
   return requests[math.random(0, keys - 1)]
end
