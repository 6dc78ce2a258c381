package control

import (
	"context"
	"net/http"
	"time"

	"github.com/balsahq/balsa/control/auth/bootstrap"
)

// The interval of readiness checks while the server starts, and the pause before a failed step is tried again if no event
// says that its reason is gone.
const (
	minPoll, maxPoll   = 2 * time.Millisecond, 100 * time.Millisecond
	minRetry, maxRetry = 50 * time.Millisecond, time.Second
)

// runStartup writes the default objects, says the server is ready, and then brings roles of an older version up to date. Each
// step is tried until it is done or ctx ends: several servers may do the same at the same time, and there may be no
// quorum for as long as it takes.
func (s *Server) runStartup(ctx context.Context) {
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"a quorum of the cluster's servers", s.awaitQuorum},
		{"definitions of custom resources", s.startExtensions},
		{"the definition of PodPresets", s.definePresets},
		{"the definition of InitializerConfigurations", s.defineInitializers},
		{"default objects", func(ctx context.Context) error { return s.writeDefaults(ctx, s.defaultObjects()) }},
		{"the ways to other API servers", s.aggregation.Await},
		{"readiness", s.awaitReadiness},
	}
	for _, step := range steps {
		if !s.retryStep(ctx, step.name, step.do) {
			return
		}
	}
	close(s.ready)
	s.encryption.Look(ctx)
	s.log.Info("API server is ready", "address", s.address(), "version", gitVersion)
	s.retryStep(ctx, "default roles", func(ctx context.Context) error {
		return bootstrap.EnsureRBAC(ctx, s.client, bootstrap.Default())
	})
}

// retryStep repeats step until it succeeds; it returns false if ctx ends first. Each reason for a failure is logged once.
func (s *Server) retryStep(ctx context.Context, name string, step func(context.Context) error) bool {
	told := ""
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		changed := s.cfg.Store.LeaderChanged()
		err := step(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		if reason := err.Error(); reason != told {
			told = reason
			s.log.Warn("waiting for "+name, "err", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// awaitQuorum returns when a leader confirms what is written.
func (s *Server) awaitQuorum(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := s.cfg.Store.Barrier(patient)
	return err
}

// startExtensions brings up what serves custom resources. The definitions come first: the hooks look whether they are
// there once and then every 100 ms.
func (s *Server) startExtensions(ctx context.Context) error {
	s.extensions.Informers.Start(ctx.Done())
	if waitFor(ctx, s.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().HasSynced) {
		s.generic.RunPostStartHooks(ctx)
	}
	return nil
}

// awaitReadiness returns when everything but the default objects is ready. Encryption keys may come later: not all objects
// need them, and the program that provides them may run on this cluster.
func (s *Server) awaitReadiness(ctx context.Context) error {
	waitFor(ctx, func() bool {
		code := 0
		ask := s.client.Discovery().RESTClient().Get().AbsPath("/readyz")
		for _, name := range append([]string{checkDefaultObjects, checkEncryption, checkPlugins}, s.defaultObjectChecks...) {
			ask = ask.Param("exclude", name)
		}
		ask.Do(ctx).StatusCode(&code)
		return code == http.StatusOK
	})
	return nil
}

// waitFor polls until cond holds; it returns false if ctx ends first.
func waitFor(ctx context.Context, cond func() bool) bool {
	for wait := minPoll; !cond(); wait = min(2*wait, maxPoll) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
	return true
}
