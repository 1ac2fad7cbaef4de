package ginlimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/ginlimit"
	"github.com/sluice-go/sluice/httplimit"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	gin.DefaultWriter, gin.DefaultErrorWriter = io.Discard, io.Discard
	m.Run()
}

var errWrongPassword = errors.New("wrong password")

// refusals are the ways in which a login can fail under gin, and what the client sees.
var refusals = map[string]struct {
	refuse gin.HandlerFunc
	status int
}{
	"a response":             {func(c *gin.Context) { c.JSON(401, gin.H{"error": "no"}) }, 401},
	"a status":               {func(c *gin.Context) { c.Status(401) }, 401},
	"an abort":               {func(c *gin.Context) { c.AbortWithStatus(401) }, 401},
	"an abort with an error": {func(c *gin.Context) { _ = c.AbortWithError(401, io.EOF) }, 401},
	"an error":               {func(c *gin.Context) { _ = c.Error(errWrongPassword) }, 403},
	"an error and a status":  {func(c *gin.Context) { _ = c.Error(io.EOF); c.Status(401) }, 401},
	"a panic":                {func(*gin.Context) { panic("oops") }, 500},
	"a panic after a status": {func(c *gin.Context) { c.Status(401); panic("oops") }, 500},
}

// attempts limits logins that fail to 3 an hour, and notes what Settle is told.
func attempts(t *testing.T) (c httplimit.Config, told *[]int) {
	lim, err := sluice.New(sluice.Config{Limit: sluice.PerHour(3), Clock: sluice.NewManualClock(time.Now())})
	require.NoError(t, err)
	var statuses []int
	c.Policies = []httplimit.Policy{{Name: "attempts", Limiter: lim, Key: httplimit.ByBasicAuthUser()}}
	c.Explain = true
	c.Settle = func(_ *http.Request, status int) (cost int) {
		statuses = append(statuses, status)
		if status != http.StatusOK {
			cost = 1
		}
		return cost
	}
	return c, &statuses
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
		d, ok := httplimit.DecisionFromContext(c.Request.Context())
		require.True(t, ok)
		require.Equal(t, "eve", d.Charges[0].Key)
		if c.GetHeader("Welcome") == "" {
			refuse(c)
			return
		}
		c.String(http.StatusOK, "welcome")
	})
	srv := httptest.NewServer(engine)
	t.Cleanup(srv.Close)
	return srv.URL
}

func request(ctx context.Context, url string, welcome bool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth("eve", "x")
	if welcome {
		req.Header.Set("Welcome", "yes")
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return resp, err
}

func status(t *testing.T, url string, welcome bool) int {
	resp, err := request(context.Background(), url, welcome)
	require.NoError(t, err)
	return resp.StatusCode
}

// Through a real server: logins that succeed are free, and three may fail, however they do.
func TestGin_FailedLoginsAreCounted(t *testing.T) {
	for name, tt := range refusals {
		for _, text := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c, told := attempts(t)
				limit, err := ginlimit.New(c)
				require.NoError(t, err)
				url := newServer(t, tt.refuse, gin.Recovery(), answerErrors(text), limit)
				for range 3 {
					require.Equal(t, 200, status(t, url, true))
					require.Equal(t, 200, status(t, url, true))
					require.Equal(t, tt.status, status(t, url, false))
				}
				assert.Equal(t, []int{200, 200, tt.status, 200, 200, tt.status, 200, 200, tt.status}, *told)
				resp, err := request(context.Background(), url, true)
				require.NoError(t, err)
				assert.Equal(t, 429, resp.StatusCode)
				assert.Equal(t, "1200", resp.Header.Get("Retry-After"))
				assert.Len(t, *told, 9, "the handler is not called")
			})
		}
	}
}

// A handler that gives up on a client that has gone has not succeeded.
func TestGin_AClientThatHasGone(t *testing.T) {
	c, _ := attempts(t)
	told := make(chan int, 1)
	c.Settle = func(_ *http.Request, status int) int { told <- status; return 1 }
	limit, err := ginlimit.New(c)
	require.NoError(t, err)
	ctx, leave := context.WithCancel(context.Background())
	url := newServer(t, func(c *gin.Context) {
		leave()
		<-c.Request.Context().Done()
	}, limit)
	_, err = request(ctx, url, false)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, httplimit.StatusClientGone, <-told)
}

// An error that nobody answers stays charged, and a path without a route is a 404.
func TestGin_WhatNobodyAnswers(t *testing.T) {
	c, told := attempts(t)
	limit, err := ginlimit.New(c)
	require.NoError(t, err)
	url := newServer(t, func(c *gin.Context) { _ = c.Error(io.EOF) }, limit)
	for _, want := range []int{200, 200, 404, 429} {
		path := "/"
		if want == 404 {
			path = "/none"
		}
		assert.Equal(t, want, status(t, url+path, false))
	}
	assert.Equal(t, []int{404}, *told)
}

func TestNew_Refuses(t *testing.T) {
	limit, err := ginlimit.New(httplimit.Config{})
	assert.Nil(t, limit)
	assert.ErrorContains(t, err, "Config.Policies")
}
