package ginlimit_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sluice-go/sluice/httplimit/ginlimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

func TestSurface(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limit, err := ginlimit.New(surfaces.HTTPConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			engine := gin.New()
			engine.Use(gin.Recovery(), answerSome, limit)
			engine.GET("/", func(c *gin.Context) {
				if err := surfaces.ServeHTTP(s, c.Writer); err != nil {
					_ = c.Error(err)
				}
			})
			url := surfaces.Listen(t, surfaces.Around(s, engine))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url)}, nil
		},
		Cannot: surfaces.HTTPCannot(map[string]string{
			"streaming after the handler": "a response ends with its handlers, unless they have hijacked the connection",
			"timeout":                     "gin has nobody who gives up on a handler",
		}),
	}.Test(t)
}

// answerSome answers errors but those that nobody is to answer.
func answerSome(c *gin.Context) {
	c.Next()
	if len(c.Errors) > 0 && !errors.Is(c.Errors.Last(), surfaces.ErrUnanswered) {
		c.AbortWithStatus(http.StatusInternalServerError)
	}
}
