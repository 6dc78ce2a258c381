package peer

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore"
)

// upstreamLayer is TLS over loopback for raft.NetworkTransport.
type upstreamLayer struct {
	net.Listener
	conf *tls.Config
}

func (u upstreamLayer) Dial(addr raft.ServerAddress, d time.Duration) (net.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: d}, "tcp", string(addr), u.conf)
}

func upstream(b *testing.B, w *world) *raft.NetworkTransport {
	b.Helper()
	id := newID()
	cert := w.ca.server(id)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}})
	must(b, err)
	tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  upstreamLayer{l, &tls.Config{RootCAs: w.ca.pool, ServerName: ServerName(id), Certificates: []tls.Certificate{*cert}}},
		MaxPool: 3, Timeout: 10 * time.Second, Logger: hclog.NewNullLogger(), MsgpackUseNewTimeFormat: true,
	})
	b.Cleanup(func() { _ = tr.Close(); tr.CloseStreams() })
	return tr
}

func answerAppends(b *testing.B, tr raft.Transport) {
	b.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case rpc := <-tr.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
			case <-stop:
				return
			}
		}
	}()
	b.Cleanup(func() { close(stop); <-done })
}

// BenchmarkPipeline is a pipeline of appends of 256-byte entries over loopback
// TLS, with Raft's own transport beside it.
func BenchmarkPipeline(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		req := func() *raft.AppendEntriesRequest {
			r := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(newID()), Addr: []byte(newID())}, Term: 1, PrevLogEntry: 1}
			for i := range n {
				data := make([]byte, 256)
				rand.Read(data)
				r.Entries = append(r.Entries, &raft.Log{Index: uint64(i), Term: 1, Data: data, AppendedAt: time.Now()})
			}
			return r
		}
		b.Run(fmt.Sprintf("entries=%d/here", n), func(b *testing.B) {
			w := newWorld(b)
			from, to := w.join(), w.join()
			answerAppends(b, to.Transport())
			p, err := from.Transport().AppendEntriesPipeline(raftID(to), "")
			must(b, err)
			pump(b, p, req())
		})
		b.Run(fmt.Sprintf("entries=%d/upstream", n), func(b *testing.B) {
			w := newWorld(b)
			tr := upstream(b, w)
			answerAppends(b, tr)
			p, err := tr.AppendEntriesPipeline("", tr.LocalAddr())
			must(b, err)
			pump(b, p, req())
		})
	}
}

func pump(b *testing.B, p raft.AppendPipeline, req *raft.AppendEntriesRequest) {
	b.Helper()
	size := 0
	for _, e := range req.Entries {
		size += len(e.Data)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	done := make(chan error, 1)
	b.ResetTimer()
	go func() {
		for range b.N {
			if err := (<-p.Consumer()).Error(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range b.N {
		if _, err := p.AppendEntries(req, &raft.AppendEntriesResponse{}); err != nil {
			b.Fatal(err)
		}
	}
	must(b, <-done)
	b.StopTimer()
	_ = p.Close()
}

// BenchmarkHeartbeat is one request and its answer on a kept connection.
func BenchmarkHeartbeat(b *testing.B) {
	w := newWorld(b)
	from, to := w.join(), w.join()
	to.Transport().SetHeartbeatHandler(func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil) })
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{Addr: []byte(from.id)}, Term: 1}
	b.ReportAllocs()
	for b.Loop() {
		must(b, from.Transport().AppendEntries(raftID(to), "", req, &raft.AppendEntriesResponse{}))
	}
}

// BenchmarkForward is a batch handed to a peer that takes it at once.
func BenchmarkForward(b *testing.B) {
	for _, size := range []int{256, 64 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			w := newWorld(b)
			from, to := w.join(), w.join()
			to.Serve(handler{})
			ctx := b.Context()
			entry := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				must(b, from.Peers().Forward(ctx, to.id, raftstore.Batch{Entry: entry}))
			}
		})
	}
}
