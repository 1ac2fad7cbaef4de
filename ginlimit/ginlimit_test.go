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

	"github.com/sluice-go/sluice/ginlimit"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/logins"
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
	return srv.URL
}

// Through a real server: logins that succeed are free, and three may fail, however they do.
func TestGin_FailedLoginsAreCounted(t *testing.T) {
	for name, tt := range refusals {
		for _, text := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c, told := logins.Config(t)
				limit, err := ginlimit.New(c)
				require.NoError(t, err)
				url := newServer(t, tt.refuse, gin.Recovery(), answerErrors(text), limit)
				logins.RequireThreeMayFail(t, url, tt.status, told)
			})
		}
	}
}

// A handler that gives up on a client that has gone has not succeeded.
func TestGin_AClientThatHasGone(t *testing.T) {
	c, _ := logins.Config(t)
	told := make(chan int, 1)
	c.Settle = func(_ *http.Request, status int) int { told <- status; return 1 }
	limit, err := ginlimit.New(c)
	require.NoError(t, err)
	begun := make(chan struct{})
	url := newServer(t, func(c *gin.Context) {
		close(begun)
		<-c.Request.Context().Done()
	}, limit)
	logins.Leave(t, url, begun)
	assert.Equal(t, httplimit.StatusClientGone, <-told)
}

// An error that nobody answers stays charged, and a path without a route is a 404.
func TestGin_WhatNobodyAnswers(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := ginlimit.New(c)
	require.NoError(t, err)
	url := newServer(t, func(c *gin.Context) { _ = c.Error(io.EOF) }, limit)
	for _, want := range []int{200, 200, 404, 429} {
		path := "/"
		if want == 404 {
			path = "/none"
		}
		assert.Equal(t, want, logins.Fail(t, url+path))
	}
	assert.Equal(t, []int{404}, *told)
}

func TestNew_Refuses(t *testing.T) {
	limit, err := ginlimit.New(httplimit.Config{})
	assert.Nil(t, limit)
	logins.RequireRefused(t, err)
}
