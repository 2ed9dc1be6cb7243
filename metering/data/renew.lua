-- Begin a new epoch, unless somebody else has begun one since.
--
-- KEYS[1]   wb:1:epoch    text
-- ARGV      the epoch that was seen ('' for none), the new one
-- returns   the epoch that is now

local now = redis.call('GET', KEYS[1]) or ''
if now == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return ARGV[2]
end
return now
