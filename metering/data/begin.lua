-- Take a tenant into an epoch: it is not ready in it yet.
--
-- KEYS[1]   wb:1:{T}:meta    hash
-- ARGV      the epoch

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
  redis.call('HDEL', KEYS[1], 'ready')
end
return 0
