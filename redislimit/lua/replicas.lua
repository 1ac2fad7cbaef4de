-- The processes that share limits: a sorted set of their names, by the time of their last beat, in ms.
--
-- ARGV: the name, ms of Unix time or 0 to ask Redis, ms for which a beat holds, and 1 to leave. The reply is how
-- many there are.
local key, name, now, life = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[4] == '1' then
  redis.call('ZREM', key, name)
  return redis.call('ZCARD', key)
end
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('ZADD', key, string.format('%.0f', now), name)
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now - life))
redis.call('PEXPIRE', key, ARGV[3])
return redis.call('ZCARD', key)
