package echolimit_test

import (
	"log"
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/httplimit/echolimit"
)

// Five logins of a user may fail in an hour; those that succeed do not count.
func Example() {
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	limit, err := echolimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "failed-logins", Limiter: failures, Key: httplimit.ByBasicAuthUser()}},
		Settle: func(_ *http.Request, status int) int {
			if status == http.StatusOK {
				return 0
			}
			return -1 // as charged
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.GET("/login", func(c *echo.Context) error {
		if _, password, _ := c.Request().BasicAuth(); password != "secret" {
			return echo.ErrUnauthorized
		}
		return c.String(http.StatusOK, "welcome")
	}, limit)
	log.Fatal(e.Start("localhost:8080"))
}
