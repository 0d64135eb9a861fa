-- GET of random keys k0 .. k<N-1>.
--
--     wrk -t 1 -c 20 -d 5s -s bench/wrk_get.lua http://127.0.0.1:1234 -- 40000
--     wrk ... -- 40000 k 0.99     by Zipf's law with that exponent
--     wrk ... -- 40000 none       keys none0 .. none39999, which nobody stored

dofile((debug.getinfo(1, "S").source:match("@(.*/)") or "") .. "wrk_common.lua")

function init(args)
   local keys = tonumber(args[1]) or 40000
   local prefix = args[2] or "k"
   math.randomseed(number + 1)
   draw = drawing(keys, tonumber(args[3]) or 0)
   -- Made once: what wrk does per request is to pick one.
   requests = {}
   for k = 0, keys - 1 do
      requests[k] = wrk.format("GET", "/" .. prefix .. k)
   end
end

function request()
   return requests[draw()]
end
