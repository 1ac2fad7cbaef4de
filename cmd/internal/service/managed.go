package service

import (
	"context"
	"errors"
	"os"

	"github.com/sluice-go/sluice/cmd/internal/xds"
	"github.com/sluice-go/sluice/rules"
)

// errStopped ends a start that waits for rules, or for the store.
var errStopped = errors.New("stopped before the service had started")

// managed is the rules of a management server.
type managed struct {
	*server
	first chan *rules.Set // gets the first rules, if the engine waits for them; else nil
}

// managedRules asks the management server until s.stopManaged is called. It waits for the first rules, unless
// the service starts without rules: ports open only when there are rules to decide by.
func (s *server) managedRules(stop <-chan os.Signal) (*rules.Set, error) {
	c := s.config
	m := &managed{server: s}
	ctx, cancel := context.WithCancel(context.Background())
	if !c.StartWithoutRules {
		m.first = make(chan *rules.Set, 1)
	}
	first, ended := m.first, make(chan struct{})
	client := xds.Client{
		Server: c.XDS, Node: c.XDSNode, TLS: c.XDSTLS, Retry: c.XDSRetry, RetryMax: c.XDSRetryMax, Log: s.log,
		Apply: func(files []rules.File, err error) error { return m.apply(ctx, files, err) },
	}
	go func() {
		defer close(ended)
		client.Run(ctx)
	}()
	s.stopManaged = func() {
		cancel()
		<-ended
	}
	if first == nil {
		return rules.Load(nil, rules.Options{})
	}
	s.log.Warn("waiting for rules: no port is open until they come", "server", c.XDS)
	select {
	case set := <-first:
		return set, nil
	case <-stop:
		return nil, errStopped
	}
}

// apply is called by one goroutine.
func (m *managed) apply(ctx context.Context, files []rules.File, err error) error {
	if m.first != nil {
		set, err := m.loadFirst(files, err)
		if err == nil {
			m.first <- set
			m.first = nil
		}
		return err
	}
	select {
	case <-m.made:
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.replace(files, nil, err)
}

// loadFirst loads rules while there is no engine.
func (m *managed) loadFirst(files []rules.File, err error) (*rules.Set, error) {
	var set *rules.Set
	if err == nil {
		set, err = m.load(files, nil)
	}
	m.loads.add(err)
	if err != nil {
		m.log.Error("the rules are refused, and there are no others yet", "error", err)
	}
	return set, err
}
