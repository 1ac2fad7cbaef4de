package ginlimit_test

import (
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/httplimit/ginlimit"
)

// Each address may send ten requests a second, and only five of its logins in an hour may
// fail.
func Example() {
	byIP := sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))
	requests := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10)}))
	limit, err := ginlimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "requests", Limiter: requests, Key: byIP}},
	})
	if err != nil {
		log.Fatal(err)
	}
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	limitFailures, err := ginlimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "failed-logins", Limiter: failures, Key: byIP}},
		Settle: func(_ *http.Request, status int) int {
			if status == http.StatusUnauthorized {
				return 1
			}
			return 0
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	router := gin.New()
	router.Use(gin.Recovery(), limit)
	router.POST("/login", limitFailures, func(c *gin.Context) {
		if _, password, _ := c.Request.BasicAuth(); password != "secret" {
			c.AbortWithStatus(http.StatusUnauthorized)
			return
		}
		c.String(http.StatusOK, "welcome")
	})
	log.Fatal(router.Run("localhost:8080"))
}
