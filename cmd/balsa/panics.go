package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/fault"
)

// containPanics has panics stay where they are: those in our units of work are logged by log, and those that the
// Kubernetes libraries recover (informers, work queues, post-start hooks) are counted and no longer raised again.
var containPanics = func() func(log *slog.Logger) {
	var once sync.Once
	return func(log *slog.Logger) {
		fault.LogTo(log)
		once.Do(func() {
			utilruntime.ReallyCrash = false
			utilruntime.PanicHandlers = []func(context.Context, any){libraryPanicked}
			prometheus.MustRegister(panicCollector{})        // the node's API
			legacyregistry.RawMustRegister(panicCollector{}) // the API
		})
	}
}()

// libraryPanicked counts and logs a panic. The one that aborts an HTTP answer goes on: net/http has to see it.
func libraryPanicked(_ context.Context, value any) {
	if value == http.ErrAbortHandler {
		panic(value)
	}
	fault.Caught("library", value)
}

// containCalls keeps panics of gRPC handlers in the call. What runs before and after them is contained by containTap and
// by the codec of package etcd.
func containCalls() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		err = containCall(func() (err error) {
			answer, err = handler(ctx, req)
			return err
		})
		return answer, err
	}
	stream := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return containCall(func() error { return handler(srv, s) })
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}

// containTap keeps panics of a tap, which runs in the goroutine of the connection, in the call.
func containTap(next tap.ServerInHandle) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (out context.Context, err error) {
		err = fault.Contain("gRPC", func() (err error) {
			out, err = next(ctx, info)
			return err
		})
		return out, internal(err)
	}
}

func containCall(handle func() error) error {
	err := fault.Contain("gRPC", func() error {
		fault.Point("gRPC")
		return handle()
	})
	return internal(err)
}

// internal is the status that the caller gets for a panic.
func internal(err error) error {
	if errors.Is(err, fault.ErrPanic) {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}

var panicsTotal = prometheus.NewDesc("balsa_panics_total", "Panics that ended one unit of work and nothing else, by unit.", []string{"unit"}, nil)

// panicCollector shows the counts of package fault as a metric.
type panicCollector struct{}

// Describe implements prometheus.Collector.
func (panicCollector) Describe(ch chan<- *prometheus.Desc) { ch <- panicsTotal }

// Collect implements prometheus.Collector.
func (panicCollector) Collect(ch chan<- prometheus.Metric) {
	for unit, n := range fault.Counts() {
		ch <- prometheus.MustNewConstMetric(panicsTotal, prometheus.CounterValue, float64(n), unit)
	}
}
