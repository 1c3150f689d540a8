-- Script for wrk with one thread: sends requests that each have their own Idempotency-Key, and prints one RESULT line.
-- Arguments: METHOD PATH NONCE. /healthz gets the same header, so that both cost wrk the same.

function init(arguments)
  local method, path, nonce = arguments[1], arguments[2], arguments[3]
  before = method .. " " .. path .. " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n"
    .. (method == "POST" and "Content-Length: 0\r\n" or "")
    .. "Idempotency-Key: " .. nonce .. "-"
  sent = 0
end

-- wrk.format would take longer than sending the request.
function request()
  sent = sent + 1
  return before .. sent .. "\r\n\r\n"
end

-- There is no function `response`: for it, wrk would build a table of each answer.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"seconds": %.6f, "requests": %d, "refused": %d, "broken": %d, '
      .. '"p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.duration / 1e6, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
