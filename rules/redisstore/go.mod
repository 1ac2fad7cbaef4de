module github.com/sluice-go/sluice/rules/redisstore

go 1.25.0

require (
	github.com/redis/go-redis/v9 v9.22.0
	github.com/sluice-go/sluice v0.0.0
	github.com/sluice-go/sluice/redistier v0.0.0
	github.com/sluice-go/sluice/rules v0.0.0
	github.com/stretchr/testify v1.11.1
)
