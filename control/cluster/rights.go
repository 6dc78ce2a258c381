package cluster

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/joinlimit"
	"github.com/balsahq/balsa/raftstore/peer/connlimit"
)

// aClient is a caller with a certificate of the cluster that is of no member and no administrator, such as a program that
// uses the etcd API. What it may do there, the etcd API decides.
const aClient kind = 1 << 7

// mayCall says who may call what the one port serves: a service or, where there is a longer entry, a method. What is not
// here nobody may call. The methods themselves look closer.
var mayCall = map[string]kind{
	clusterpb.Cluster_Join_FullMethodName:        nobody | aClient | members,
	clusterpb.Cluster_Renew_FullMethodName:       aNode,
	clusterpb.Cluster_ConfirmKeys_FullMethodName: aNode,
	clusterpb.Cluster_Leave_FullMethodName:       members,
	clusterpb.Cluster_Servers_FullMethodName:     members,
	clusterpb.Cluster_Members_FullMethodName:     members,
	clusterpb.Cluster_Status_FullMethodName:      members,
	clusterpb.Cluster_Events_FullMethodName:      members,
	"/balsa.cluster.v1.Cluster/":                 managers,

	"/etcdserverpb.KV/":          aMaster | aClient,
	"/etcdserverpb.Watch/":       aMaster | aClient,
	"/etcdserverpb.Lease/":       aMaster | aClient,
	"/etcdserverpb.Maintenance/": aMaster | aClient,
	"/etcdserverpb.Cluster/":     aMaster | aClient,
	"/etcdserverpb.Auth/":        aMaster | aClient,

	"/grpc.health.v1.Health/":                    aClient | members,
	"/grpc.reflection.v1.ServerReflection/":      aClient | managers,
	"/grpc.reflection.v1alpha.ServerReflection/": aClient | managers,
}

// callersOf returns who may call a method.
func callersOf(method string) kind {
	if kinds, ok := mayCall[method]; ok {
		return kinds
	}
	return mayCall[method[:strings.LastIndexByte(method, '/')+1]]
}

// Requests that strangers and nodes may have under way, of each and of all, and how long a stranger's may take.
const (
	strangerStreams, allStrangerStreams = 16, 64
	nodeStreams, allNodeStreams         = 128, 1 << 16
	strangerTime                        = 45 * time.Second
)

// streams are the requests that are under way, by address of the stranger or name of the node that made them. A stranger's
// whose message has not come yet gives way to a newer one.
type streams struct {
	mu               sync.Mutex
	strangers, nodes connlimit.Crowd[string, *stream]
	number           int64 // of the newest stream
}

// stream is one request.
type stream struct {
	of     string
	number int64
	busy   bool // it gives way to no other; guarded by streams.mu
	cancel context.CancelFunc
}

// State implements connlimit.Member.
func (s *stream) State() connlimit.State { return connlimit.State{Busy: s.busy, Last: s.number} }

type streamKey struct{}

// Tap is for grpc.InTapHandle of a server on the one port: it decides by the verified certificate of the connection who may
// call a method, before anything of the message is read, and bounds what strangers and nodes have under way.
func (s *Service) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	who := caller{kind: nobody}
	if p, ok := peer.FromContext(ctx); ok {
		who.from = addressOf(p.Addr)
		if auth, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(auth.State.VerifiedChains) > 0 {
			who.kind, who.id = identify(auth.State.VerifiedChains[0][0])
			if who.kind == nobody {
				who.kind = aClient
			}
		}
	}
	return s.streams.enter(ctx, who, info.FullMethodName)
}

// TapHTTP does what Tap does for requests of gRPC clients that came to an http.Server, which has verified no certificate.
func (s *Service) TapHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := s.httpCaller(r.TLS)
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			who.from = from.Addr().Unmap()
		}
		ctx, err := s.streams.enter(r.Context(), who, r.URL.Path)
		if err != nil { // as gRPC says it in headers alone
			answer := status.Convert(err)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", strconv.Itoa(int(answer.Code())))
			w.Header().Set("Grpc-Message", answer.Message())
			return
		}
		ctx, cancel := context.WithCancel(ctx) // the stream is over when the handler returns
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *Service) httpCaller(state *tls.ConnectionState) caller {
	who := caller{kind: nobody}
	if state == nil || len(state.PeerCertificates) == 0 {
		return who
	}
	leaf := state.PeerCertificates[0]
	opts, _ := s.cfg.PKI.ClientVerifyOptions()
	if _, err := leaf.Verify(opts); err != nil {
		return who
	}
	if who.kind, who.id = identify(leaf); who.kind == nobody {
		who.kind = aClient
	}
	return who
}

// enter returns the context of a request that may begin. Its share is given back when the context ends.
func (s *streams) enter(ctx context.Context, who caller, method string) (context.Context, error) {
	if callersOf(method)&who.kind == 0 {
		if who.kind == nobody {
			return nil, status.Error(codes.Unauthenticated, "this call needs a client certificate of the cluster; without one a machine may only join")
		}
		return nil, status.Error(codes.PermissionDenied, "this certificate may not make this call")
	}
	switch who.kind {
	case nobody:
		ctx, cancel := context.WithTimeout(ctx, strangerTime)
		st := &stream{of: joinlimit.SourceOf(who.from).String(), cancel: cancel}
		return s.add(ctx, st, &s.strangers, strangerStreams, allStrangerStreams)
	case aNode:
		ctx, cancel := context.WithCancel(ctx)
		st := &stream{of: who.id, cancel: cancel, busy: true}
		return s.add(ctx, st, &s.nodes, nodeStreams, allNodeStreams)
	}
	return ctx, nil
}

// add finds a place for a request.
func (s *streams) add(ctx context.Context, st *stream, crowd *connlimit.Crowd[string, *stream], each, total int) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	victim, found, ok := crowd.Place(st.of, each, total)
	if !ok {
		st.cancel()
		return nil, status.Errorf(codes.ResourceExhausted, "%d calls of this caller are under way; no more are taken now", crowd.Of(st.of))
	}
	if found {
		crowd.Remove(victim.of, victim)
		victim.cancel()
	}
	s.number++
	st.number = s.number
	crowd.Add(st.of, st)
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		crowd.Remove(st.of, st)
		st.cancel()
	})
	return context.WithValue(ctx, streamKey{}, st), nil
}

// hasCome notes that a request's message is here: it gives way to no other any more.
func (s *streams) hasCome(ctx context.Context) {
	if st, ok := ctx.Value(streamKey{}).(*stream); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.busy = true
	}
}
