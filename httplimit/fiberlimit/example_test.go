package fiberlimit_test

import (
	"log"
	"net/http"

	"github.com/gofiber/fiber/v3"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/httplimit/fiberlimit"
)

// Five logins of a user may fail in an hour; those that succeed do not count.
func Example() {
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	limit, err := fiberlimit.New(httplimit.Config{
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
	app := fiber.New()
	app.Get("/login", limit, func(c fiber.Ctx) error {
		if c.Get("Authorization") != "Basic Ym9iOnNlY3JldA==" {
			return fiber.ErrUnauthorized
		}
		return c.SendString("welcome")
	})
	log.Fatal(app.Listen("localhost:8080"))
}
