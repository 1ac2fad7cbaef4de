package ginlimit_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/httplimit/ginlimit"
	"github.com/sluice-go/sluice/internal/test/logins"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	gin.DefaultWriter, gin.DefaultErrorWriter = io.Discard, io.Discard
	m.Run()
}

var errWrongPassword = errors.New("wrong password")

// refusals are the ways in which a login can fail under gin, and what the client sees.
var refusals = map[string]logins.Failure[gin.HandlerFunc]{
	"a response":             {func(c *gin.Context) { c.JSON(401, gin.H{"error": "no"}) }, 401},
	"a status":               {func(c *gin.Context) { c.Status(401) }, 401},
	"an abort":               {func(c *gin.Context) { c.AbortWithStatus(401) }, 401},
	"an abort with an error": {func(c *gin.Context) { _ = c.AbortWithError(401, io.EOF) }, 401},
	"an error":               {func(c *gin.Context) { _ = c.Error(errWrongPassword) }, 403},
	"an error and a status":  {func(c *gin.Context) { _ = c.Error(io.EOF); c.Status(401) }, 401},
	"a panic":                {func(*gin.Context) { panic("oops") }, 500},
	"a panic after a status": {func(c *gin.Context) { c.Status(401); panic("oops") }, 500},
}

// answerErrors is the middleware that answers what handlers have noted, by JSON or text.
func answerErrors(text bool) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Next()
		if len(c.Errors) == 0 || !errors.Is(c.Errors.Last(), errWrongPassword) {
			return
		}
		if c.Status(http.StatusForbidden); text {
			_, _ = c.Writer.WriteString("wrong password")
		} else {
			c.JSON(http.StatusForbidden, gin.H{"error": "wrong password"})
		}
	}
}

func newServer(t *testing.T, refuse gin.HandlerFunc, middlewares ...gin.HandlerFunc) string {
	engine := gin.New()
	engine.Use(middlewares...)
	engine.GET("/", func(c *gin.Context) {
		switch {
		case !logins.Limited(c.Request.Context()):
			c.Status(http.StatusTeapot)
			return
		case c.GetHeader("Authorization") != logins.Right:
			refuse(c)
			return
		}
		c.String(http.StatusOK, "welcome")
	})
	srv := httptest.NewServer(engine)
	t.Cleanup(srv.Close)
	return srv.URL + "/"
}

func TestGin(t *testing.T) {
	logins.Framework[gin.HandlerFunc, gin.HandlerFunc]{
		New: ginlimit.New, Serve: newServer, Failures: refusals,
		Outer: [][]gin.HandlerFunc{{answerErrors(true)}, {answerErrors(false)}}, Recovers: gin.Recovery(),
		Silent: func(*gin.Context) {},
		Waits: func(begun chan<- struct{}) gin.HandlerFunc {
			return func(c *gin.Context) {
				close(begun)
				<-c.Request.Context().Done()
			}
		},
		Pattern:    "/",
		Unanswered: logins.Failure[gin.HandlerFunc]{Fail: func(c *gin.Context) { _ = c.Error(io.EOF) }, Status: http.StatusOK},
	}.Test(t)
}

func TestGin_APathWithoutARoute(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := ginlimit.New(c)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, logins.Fail(t, newServer(t, nil, limit)+"none"))
	assert.Equal(t, []int{404}, *told)
}
