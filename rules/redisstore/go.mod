module github.com/sluice-go/sluice/rules/redisstore

go 1.25.0
