-- PUTs of keys in turn, from k0, with values of one size. Prints the figures as JSON.
--
--     wrk -t 1 -c 20 -d 10s -s bench/put.lua http://127.0.0.1:1234 -- KEYS BYTES

dofile(debug.getinfo(1, "S").source:match("@(.*)put.lua") .. "get.lua")

function init(args) -- wrk makes one request that it does not send.
   count, value, at = tonumber(args[1]), string.rep("v", tonumber(args[2])), -2
end

function request()
   at = (at + 1) % count
   return wrk.format("PUT", "/k" .. at, nil, value)
end
