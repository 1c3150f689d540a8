-- Script for wrk with one thread: sends orders of several lines or holds, each with its own key, and prints one
-- RESULT line. Arguments: KIND SKU SKUS EXPONENT LINES.
-- KIND is `deductions`, which have one line; `orders`, which counts lines; `holds`; or `confirms`, which confirms
-- each hold as soon as it is answered, and counts both. Each `{}` in SKU becomes the number of a SKU, in turn or under a Zipf law. A line
-- has one unit.

local zipf = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "zipf.lua")
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  local sku, count, exponent = arguments[2], tonumber(arguments[3]), tonumber(arguments[4])
  kind, lines, sent, answered, refused = arguments[1], tonumber(arguments[5]), 0, 0, 0
  held, order, names = {}, {}, {}
  for number = 1, count do
    order[number] = number
    names[number] = '{"sku":"' .. sku:gsub("{}", number) .. '"}'
  end
  if exponent > 0 then order = zipf(count, exponent) end
  prefix = "Idempotency-Key: " .. sku .. "-" .. lines .. "-" .. os.time() .. "-"
  host = " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n"
  post = "POST " .. ((kind == "orders" or kind == "deductions") and "/stock/deduct" or "/holds") .. host
    .. "Content-Type: application/json\r\nContent-Length: "
end

function request()
  local hold = table.remove(held)
  if hold then
    return "POST /operations/" .. hold .. "/confirm" .. host .. "Content-Length: 0\r\n\r\n"
  end
  local parts = {}
  for line = 1, lines do
    parts[line] = names[order[(sent * lines + line) % #order + 1]]
  end
  sent = sent + 1
  local body = kind == "deductions" and parts[1] or '{"lines":[' .. table.concat(parts, ",") .. "]}"
  return post .. #body .. "\r\n" .. prefix .. sent .. "\r\n\r\n" .. body
end

function response(status, _, body)
  if status ~= 200 and status ~= 201 then
    refused = refused + 1
    return
  end
  answered = answered + (kind == "orders" and lines or 1)
  if status == 201 and kind == "confirms" then
    held[#held + 1] = body:match('"id":"([^"]*)"')
  end
end

function done(summary, latency)
  local errors, thread = summary.errors, threads[1]
  local answered, refused = thread:get("answered"), thread:get("refused")
  io.write(string.format(
    'RESULT {"seconds": %.6f, "requests": %d, "refused": %d, "broken": %d, '
      .. '"p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.duration / 1e6, answered + refused, refused,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
