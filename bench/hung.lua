-- As get.lua, with the number of answers by status: values, misses and refusals.

dofile(debug.getinfo(1, "S").source:match("@(.*)hung.lua") .. "get.lua")
local thread, finish = nil, done
ok, misses, refused = 0, 0, 0

function setup(one)
   thread = one
end

function response(status)
   if status == 200 then
      ok = ok + 1
   elseif status == 404 then
      misses = misses + 1
   elseif status == 503 then
      refused = refused + 1
   end
end

function done(summary, latency)
   summary.errors.timeout = 0 -- Of requests that are answered later.
   summary.errors.status =
      summary.requests - thread:get("ok") - thread:get("misses") - thread:get("refused")
   io.write(string.format(
      '{"ok": %d, "misses": %d, "refused": %d}\n',
      thread:get("ok"), thread:get("misses"), thread:get("refused")))
   finish(summary, latency)
end
