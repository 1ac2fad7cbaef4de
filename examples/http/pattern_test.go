package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// TestChi_OneBudgetForEachRoute: however a client spells the path, ByPattern counts it for the route.
func TestChi_OneBudgetForEachRoute(t *testing.T) {
	limiter := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2), Clock: sluice.NewManualClock(time.Unix(1_700_000_000, 0))}))
	limit := sluice.Must(httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "route", Limiter: limiter, Key: httplimit.ByPattern()}}}))
	router := chi.NewRouter()
	router.Use(middleware.CleanPath, middleware.StripSlashes)
	served := 0
	router.With(limit.Handler).Get("/x", func(http.ResponseWriter, *http.Request) { served++ })
	for _, path := range []string{"/x", "//x", "/x/", "///x", "/./x", "/a/../x", "/x"} {
		r := httptest.NewRequest(http.MethodGet, "http://h"+path, nil)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		if w.Code == http.StatusNotFound || w.Code == http.StatusBadRequest {
			t.Errorf("%s: status %d", path, w.Code)
		}
	}
	if served != 2 {
		t.Errorf("%d requests of one route have been served under a limit of 2", served)
	}
}
