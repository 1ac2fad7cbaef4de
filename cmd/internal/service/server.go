package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rls"
	"github.com/sluice-go/sluice/rules"
)

// stopLimit is how long calls that are under way at the end of the drain may still take.
const stopLimit = 10 * time.Second

// server is one run of the service.
type server struct {
	config *Config
	log    *slog.Logger

	clock        sluice.Clock
	manual       *sluice.ManualClock // nil with the system's clock
	watcher      *rules.Watcher
	engine       *rules.Engine
	store        *sharedStore // nil if counts are in memory
	state        *stateFile   // nil without --state
	service      *rls.Service
	checker      *checker
	live         *live
	trying       sync.Mutex              // held by a trial
	trial        atomic.Pointer[onTrial] // nil unless a trial goes on
	grpc         *grpc.Server
	certificates *certificates   // nil without TLS
	streams      map[string]bool // methods of grpc that are streams
	underWay     *underWay
	http         []*http.Server
	metrics      *metrics
	ending       chan struct{} // closed when streams are to end
	failed       chan error    // gets the error of a port that can no longer be served: it ends the service

	reached    atomic.Bool // the store has answered once
	unanswered string      // the last error of a first contact with the store; used by contacted only

	clockMutex sync.Mutex
	notices    notices // used by notice only
	loads      loads

	made        chan struct{} // closed when there is an engine
	stopManaged func()        // ends the client of --xds

	health      *rls.Health
	healthMutex sync.Mutex // held while health follows the rules
}

// Hooks connect a run with its process. All of them are optional.
type Hooks struct {
	// Stop begins the drain with its first value. A further value, or closing it, ends the drain.
	Stop <-chan os.Signal
	// Reload makes the service read the rules again.
	Reload <-chan os.Signal
	// Ready is called with the addresses, by the names of their flags, once the service answers. It is healthy then, unless
	// there are no rules, or the store has not answered, and it waits for these.
	Ready func(map[string]net.Addr)
	// Draining is called when the drain begins, with the time that it takes unless a further value of Stop ends it.
	Draining func(time.Duration)
}

// Run serves until it is told to stop, then drains and stops. c must have passed Check.
func Run(c *Config, log *slog.Logger, h Hooks) error {
	s, err := newServer(c, log, h.Stop)
	if errors.Is(err, errStopped) {
		log.Info("stopped")
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stopManaged()
	addresses, err := s.listen()
	if err != nil {
		s.close()
		s.state.close()
		return errors.Join(err, s.store.close())
	}
	s.updateHealth()
	set, _ := s.engine.Set()
	log.Info("serving", "addresses", addresses, "rules", set.Len(), "domains", len(set.Domains()))
	if h.Ready != nil {
		h.Ready(addresses)
	}
	work, stopWork := context.WithCancel(context.Background())
	var background sync.WaitGroup
	if s.watcher != nil {
		// The end does not wait for rules: reading a file may block.
		go s.watch(work, h.Reload)
	}
	if c.StateEvery > 0 {
		background.Go(func() { every(c.StateEvery, work, s.saveAgain) })
	}
	background.Go(func() { every(noticeEvery, work, s.notice) })
	background.Go(func() { every(historyEvery, work, s.live.record) })
	if s.store != nil {
		background.Go(func() { s.contactLater(work) })
	}
	select {
	case <-h.Stop:
		if h.Draining != nil {
			h.Draining(c.Drain)
		}
		err = s.drain(h.Stop)
	case err = <-s.failed:
	}
	stopWork()
	background.Wait()
	s.stopManaged()
	s.stop()
	if c.State != "" {
		err = errors.Join(err, s.save())
	}
	s.state.close()
	if e := s.store.close(); e != nil {
		s.log.Warn("the store was not told all, or was not reached, at the end", "error", e)
	}
	return err
}

// engineConfig is the configuration of an engine that counts in memory.
func (s *server) engineConfig() rules.Config {
	c := s.config
	out := rules.Config{
		Clock: s.clock, MaxKeys: c.MaxKeys, NearRatio: c.NearRatio, MaxSeries: c.MaxSeries, MaxHolds: c.MaxHolds, MaxHoldTTL: c.MaxHoldTTL,
		Shadow: c.Shadow, Quota: c.Quota, StopWhenOver: c.StopWhenOver,
	}
	if out.MaxSeries == 0 { // which means none here
		out.MaxSeries = -1
	}
	if out.NearRatio == 0 { // likewise
		out.NearRatio = -1
	}
	return out
}

// newServer loads the rules and the state, asks the store, and opens no port yet. It may have to wait for rules; stop ends
// that wait, with errStopped.
func newServer(c *Config, log *slog.Logger, stop <-chan os.Signal) (s *server, err error) {
	s = &server{config: c, log: log, clock: sluice.SystemClock(), ending: make(chan struct{}), failed: make(chan error, 8), made: make(chan struct{}), stopManaged: func() {}, health: rls.NewHealth()}
	defer func() {
		if err != nil {
			s.stopManaged()
			_ = s.store.close()
			s.state.close()
		}
	}()
	if c.ManualClock {
		s.manual = sluice.NewManualClock(time.Unix(0, 0))
		s.clock = s.manual
	}
	set, err := s.firstRules(stop)
	if err != nil {
		return s, err
	}
	if s.store, err = s.openStore(); err != nil {
		return s, err
	}
	counted := s.engineConfig()
	counted.Store, counted.Leases = s.rulesStore(), c.Store.Leases
	s.engine, err = s.restore(set, counted)
	if err != nil {
		return s, err
	}
	s.live = newLive(s)
	s.service = rls.New(s.engine, rls.Options{
		Headers: c.Headers, LimitHeader: c.LimitHeader, RemainingHeader: c.RemainingHeader, ResetHeader: c.ResetHeader,
		DynamicMetadata: c.DynamicMetadata, RuleHeader: c.RuleHeader,
		MaxDescriptors: c.MaxDescriptors, MaxEntries: c.MaxEntries, MaxValue: c.MaxValue, MaxText: c.MaxMessage,
		MessageTime: messageTime,
		Decided:     s.decided,
		Took:        func(d time.Duration) { s.metrics.grpc.Observe(d.Seconds()) },
		StoreFailed: func(err error) { log.Warn("calls are refused, since the store has not answered", "error", err) },
		Panicked:    func(v any, stack []byte) { log.Error("a call panicked", "value", v, "stack", string(stack)) },
	})
	s.metrics = newMetrics(s)
	if s.checker, err = newChecker(s); err != nil {
		return s, err
	}
	close(s.made)
	return s, s.contact(stop)
}

// updateHealth sets the health from the rules and the store, until the drain.
func (s *server) updateHealth() {
	s.healthMutex.Lock()
	defer s.healthMutex.Unlock()
	set, _ := s.engine.Set()
	s.health.Set((!s.config.HealthyWithRules || len(set.Domains()) > 0) && s.storeHealthy())
}

// drain announces the end, and goes on answering for as long as load balancers may take to
// notice it.
func (s *server) drain(hurry <-chan os.Signal) error {
	s.log.Info("draining", "time", s.config.Drain)
	s.health.Shutdown()
	timer := time.NewTimer(s.config.Drain)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hurry:
	case err := <-s.failed:
		return err
	}
	return nil
}

// stop lets calls that are under way end, for a limited time. It ends streams.
func (s *server) stop() {
	limit, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, h := range s.http {
		all.Go(func() {
			if h.Shutdown(limit) != nil {
				_ = h.Close()
			}
		})
	}
	close(s.ending)
	notInTime := context.AfterFunc(limit, s.grpc.Stop)
	s.grpc.GracefulStop()
	notInTime()
	all.Wait()
	s.log.Info("stopped")
}

// close releases everything that a failed start has opened.
func (s *server) close() {
	if s.grpc != nil {
		s.grpc.Stop()
	}
	for _, h := range s.http {
		_ = h.Close()
	}
}

// every calls f once each period, until ctx ends.
func every(period time.Duration, ctx context.Context, f func(now time.Time)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f(now)
		}
	}
}
