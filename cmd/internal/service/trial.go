package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/trial"
	"github.com/sluice-go/sluice/rules"
)

// decided is told of each call that has been answered.
func (s *server) decided(req *rules.Request, resp *rules.Response) {
	if resp.Code != rules.OK {
		s.live.denied(req, resp)
	}
	if t := s.trial.Load(); t != nil {
		t.Judge(req, resp)
	}
}

// try has other rules judge calls beside the rules in force, one set at a time, until its time is over, whoever asked has gone, or
// the service ends. It changes no answer.
func (s *server) try(w http.ResponseWriter, r *http.Request) {
	t, length, err := s.newTrial(w, r)
	var bad *rules.LoadError
	switch {
	case errors.As(err, &bad):
		http.Error(w, "the rules are refused:\n"+err.Error(), http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case !s.trial.CompareAndSwap(nil, t):
		http.Error(w, "rules are on trial already; want one trial after the other", http.StatusConflict)
		return
	}
	defer s.trial.Store(nil)
	begun := time.Now()
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
	case <-r.Context().Done():
		return
	case <-s.ending:
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(t.Result(time.Since(begun)))
}

// newTrial makes a trial of the order in a request, whose counts go on from the counts of the service, unless a store has them.
func (s *server) newTrial(w http.ResponseWriter, r *http.Request) (*trial.Trial, time.Duration, error) {
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Now().Add(time.Minute))
	var order trial.Order
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, trial.MaxOrder))
	body.DisallowUnknownFields()
	if err := body.Decode(&order); err != nil {
		return nil, 0, fmt.Errorf("the body is no order of a trial: %w; want what sluice check --against sends", err)
	}
	length := time.Duration(order.For)
	if err := trial.CheckFor(length); err != nil {
		return nil, 0, err
	}
	var files []rules.File
	for _, f := range order.Files {
		files = append(files, rules.File{Name: f.Name, Data: []byte(f.Data)})
	}
	set, err := rules.Load(files, rules.Options{MergeDomains: order.Merge})
	if err != nil {
		return nil, 0, err
	}
	c := s.engineConfig()
	var engine *rules.Engine
	if s.store != nil {
		engine, err = rules.New(set, c)
	} else {
		var counts bytes.Buffer
		if err = s.engine.Snapshot(&counts); err == nil {
			engine, err = rules.Restore(set, c, &counts)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	// From here on the deadlines are the trial's.
	_ = stream.SetReadDeadline(time.Time{})
	_ = stream.SetWriteDeadline(time.Now().Add(length + time.Minute))
	return trial.New(engine, s.store != nil, s.config.LiveKeys), length, nil
}
