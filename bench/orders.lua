-- For wrk: one request after another on each connection, every one with an Idempotency-Key of its
-- own. Arguments: METHOD PATH NONCE. /healthz is asked by the same script, header and all.

local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(arguments)
  local method, path, nonce = arguments[1], arguments[2], arguments[3]
  before = method .. " " .. path .. " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n"
    .. (method == "POST" and "Content-Length: 0\r\n" or "")
    .. "Idempotency-Key: " .. nonce .. "-" .. number .. "-"
  sent = 0
end

-- Put together here, and not by wrk.format: that would cost the load generator more than it sends.
function request()
  sent = sent + 1
  return before .. sent .. "\r\n\r\n"
end

-- No function `response`: with one, wrk would build a table of every answer. It counts those above
-- 399 by itself.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"seconds": %.6f, "requests": %d, "refused": %d, "broken": %d, '
      .. '"p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.duration / 1e6, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
