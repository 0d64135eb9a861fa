-- PUT of a body of B bytes to random keys k0 .. k<N-1>.
--
--     wrk -t 1 -c 20 -d 5s -s bench/wrk_put.lua http://127.0.0.1:1234 -- 1024 40000

dofile((debug.getinfo(1, "S").source:match("@(.*/)") or "") .. "wrk_common.lua")

function init(args)
   local bytes = tonumber(args[1]) or 1024
   keys = tonumber(args[2]) or 40000
   math.randomseed(number + 1)
   tail = "\r\nContent-Length: " .. bytes .. "\r\n\r\n" .. random_bytes(bytes)
   head = "Host: " .. wrk.host .. ":" .. wrk.port
end

function request()
   return "PUT /k" .. math.random(0, keys - 1) .. " HTTP/1.1\r\n" .. head .. tail
end
