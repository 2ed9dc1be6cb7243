-- Say that a tenant is ready, if it is in this epoch still.
--
-- KEYS[1]   wb:1:{T}:meta    hash
-- ARGV      the epoch
-- returns   1 if it is

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'ready', ARGV[1])
return 1
