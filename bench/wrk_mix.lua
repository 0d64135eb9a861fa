-- GETs and, in P of 100 requests, PUTs of B bytes; random keys k0 .. k<N-1>.
--
--     wrk -t 1 -c 20 -d 5s -s bench/wrk_mix.lua http://127.0.0.1:1234 -- 1024 40000 5

dofile((debug.getinfo(1, "S").source:match("@(.*/)") or "") .. "wrk_common.lua")

function init(args)
   local bytes = tonumber(args[1]) or 1024
   keys = tonumber(args[2]) or 40000
   puts = tonumber(args[3]) or 5
   math.randomseed(number + 1)
   tail = "\r\nContent-Length: " .. bytes .. "\r\n\r\n" .. random_bytes(bytes)
   head = "Host: " .. wrk.host .. ":" .. wrk.port
   gets = {}
   for k = 0, keys - 1 do
      gets[k] = wrk.format("GET", "/k" .. k)
   end
end

function request()
   local key = math.random(0, keys - 1)
   if math.random(1, 100) > puts then
      return gets[key]
   end
   return "PUT /k" .. key .. " HTTP/1.1\r\n" .. head .. tail
end
