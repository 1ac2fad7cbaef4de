package service

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/rls"
	"github.com/sluice-go/sluice/rules"
)

// loads records the outcomes of loading rules.
type loads struct {
	mutex               sync.Mutex
	successes, failures uint64
	last                error     // of the last load, nil if it succeeded
	at                  time.Time // when the last load succeeded
}

// firstRules loads the rules at the start.
func (s *server) firstRules(stop <-chan os.Signal) (*rules.Set, error) {
	if s.config.XDS != "" {
		return s.managedRules(stop)
	}
	s.watcher = rules.NewWatcher(s.config.Rules)
	files, other, _, err := s.watcher.Poll()
	if err == nil && len(files) == 0 && !s.config.StartWithoutRules {
		err = message.NoRules(s.config.Rules)
	}
	var set *rules.Set
	if err != nil {
		err = fmt.Errorf("--rules: %w", err)
	} else {
		set, err = s.load(files, other)
	}
	s.loads.add(err)
	if err != nil && s.config.StartWithoutRules {
		s.log.Error("starting without rules: nothing is limited", "error", err)
		return rules.Load(nil, rules.Options{})
	}
	return set, err
}

// watch loads the rules when their files change, and when it is told to.
func (s *server) watch(ctx context.Context, again <-chan os.Signal) {
	force := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-again:
				if !ok {
					return
				}
			}
			select {
			case force <- struct{}{}:
			default: // a load is waiting already
			}
		}
	}()
	s.watcher.Watch(ctx, force, s.reload)
}

// load makes a set of files, and logs its warnings.
func (s *server) load(files []rules.File, other []string) (*rules.Set, error) {
	for _, name := range other {
		s.log.Warn("not read, since its name does not end in .yaml or .yml", "file", name)
	}
	set, err := rules.Load(files, rules.Options{MergeDomains: s.config.Merge})
	if err != nil {
		return nil, err
	}
	warnings := set.Warnings()
	if s.config.Strict && len(warnings) > 0 {
		return nil, &rules.LoadError{Problems: warnings}
	}
	for _, w := range warnings {
		s.log.Warn(w.String())
	}
	s.tellEndless(set)
	if len(set.Domains()) == 0 {
		s.log.Warn("there are no rules: nothing is limited", "paths", s.config.Rules)
	}
	return set, nil
}

// reload is replace for a watcher.
func (s *server) reload(files []rules.File, other []string, err error) {
	_ = s.replace(files, other, err)
}

// replace puts other rules into force. Otherwise it returns why the old rules stay: err, if it is not nil.
func (s *server) replace(files []rules.File, other []string, err error) error {
	var set *rules.Set
	putOffCollecting(loadRoom, func() {
		if err == nil {
			set, err = s.load(files, other)
		}
		if err == nil {
			err = s.engine.Swap(set)
		}
	})
	s.loads.add(err)
	if err != nil {
		s.log.Error("the rules are refused, and the old ones stay", "error", err)
		return err
	}
	s.updateHealth()
	_, number := s.engine.Set()
	s.log.Info("rules loaded", "generation", number, "rules", set.Len(), "domains", len(set.Domains()), "digest", set.Digest())
	return nil
}

// add counts a load. It is called when the new rules are in force already.
func (l *loads) add(err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.last = err
	if err != nil {
		l.failures++
		return
	}
	l.successes++
	l.at = time.Now()
}

func (l *loads) counts() (successes, failures uint64) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.successes, l.failures
}

// report returns the last load in the form of package rls.
func (l *loads) report() rls.Load {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return rls.Load{At: l.at, Err: l.last}
}
