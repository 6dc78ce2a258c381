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

// clientCaller is a caller whose certificate is of the cluster, but of no member and no administrator, such as a program that uses
// the etcd API. The etcd API decides what it may do there.
const clientCaller callerKind = 1 << 7

// methodRights are the kinds of callers that may call a gRPC service of the one port, or a single method, whose entry has priority
// over the entry of its service. A method without an entry is refused. The methods themselves check more.
var methodRights = map[string]callerKind{
	clusterpb.Cluster_Join_FullMethodName:        anonymousCaller | clientCaller | members,
	clusterpb.Cluster_Renew_FullMethodName:       nodeCaller,
	clusterpb.Cluster_ConfirmKeys_FullMethodName: nodeCaller,
	clusterpb.Cluster_Leave_FullMethodName:       members,
	clusterpb.Cluster_Servers_FullMethodName:     members,
	clusterpb.Cluster_Members_FullMethodName:     members,
	clusterpb.Cluster_Status_FullMethodName:      members,
	clusterpb.Cluster_Events_FullMethodName:      members,
	"/balsa.cluster.v1.Cluster/":                 managers,

	"/etcdserverpb.KV/":          adminCaller | clientCaller,
	"/etcdserverpb.Watch/":       adminCaller | clientCaller,
	"/etcdserverpb.Lease/":       adminCaller | clientCaller,
	"/etcdserverpb.Maintenance/": adminCaller | clientCaller,
	"/etcdserverpb.Cluster/":     adminCaller | clientCaller,
	"/etcdserverpb.Auth/":        adminCaller | clientCaller,

	"/grpc.health.v1.Health/":                    clientCaller | members,
	"/grpc.reflection.v1.ServerReflection/":      clientCaller | managers,
	"/grpc.reflection.v1alpha.ServerReflection/": clientCaller | managers,
}

// allowedCallers returns the kinds of callers that may call a method.
func allowedCallers(method string) callerKind {
	if kinds, ok := methodRights[method]; ok {
		return kinds
	}
	return methodRights[method[:strings.LastIndexByte(method, '/')+1]]
}

// Bounds of the requests that anonymous callers (strangers) and nodes may have under way, each one and all together, and of the
// time that a stranger's request may take.
const (
	strangerStreams, allStrangerStreams = 16, 64
	nodeStreams, allNodeStreams         = 128, 1 << 16
	strangerTime                        = 45 * time.Second
)

// streams are the requests under way, by the stranger's address or the node's name. When there is no place for a stranger's
// request, the oldest one whose message has not arrived is cancelled.
type streams struct {
	mu               sync.Mutex
	strangers, nodes connlimit.Crowd[string, *stream]
	number           int64 // of the newest stream
}

// stream is one request.
type stream struct {
	of     string
	number int64
	busy   bool // it is not cancelled for another; guarded by streams.mu
	cancel context.CancelFunc
}

// State implements connlimit.Member.
func (s *stream) State() connlimit.State { return connlimit.State{Busy: s.busy, Last: s.number} }

type streamKey struct{}

// Tap is for grpc.InTapHandle of a server on the one port. Before anything of the message is read, it checks by the verified
// certificate of the connection whether the caller may call the method, and bounds the requests of strangers and nodes.
func (s *Service) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	who := caller{kind: anonymousCaller}
	if p, ok := peer.FromContext(ctx); ok {
		who.from = addressOf(p.Addr)
		if auth, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(auth.State.VerifiedChains) > 0 {
			who.kind, who.id = identify(auth.State.VerifiedChains[0][0])
			if who.kind == anonymousCaller {
				who.kind = clientCaller
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
	who := caller{kind: anonymousCaller}
	if state == nil || len(state.PeerCertificates) == 0 {
		return who
	}
	leaf := state.PeerCertificates[0]
	opts, _ := s.cfg.PKI.ClientVerifyOptions()
	if _, err := leaf.Verify(opts); err != nil {
		return who
	}
	if who.kind, who.id = identify(leaf); who.kind == anonymousCaller {
		who.kind = clientCaller
	}
	return who
}

// enter returns the context of a request that may begin. Its place is freed when the context ends.
func (s *streams) enter(ctx context.Context, who caller, method string) (context.Context, error) {
	if allowedCallers(method)&who.kind == 0 {
		if who.kind == anonymousCaller {
			return nil, status.Error(codes.Unauthenticated, "this call needs a client certificate of the cluster; without one a machine may only join")
		}
		return nil, status.Error(codes.PermissionDenied, "this certificate may not make this call")
	}
	switch who.kind {
	case anonymousCaller:
		ctx, cancel := context.WithTimeout(ctx, strangerTime)
		st := &stream{of: joinlimit.SourceOf(who.from).String(), cancel: cancel}
		return s.add(ctx, st, &s.strangers, strangerStreams, allStrangerStreams)
	case nodeCaller:
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

// markReceived notes that a request's message has arrived: the request is not cancelled for another any more.
func (s *streams) markReceived(ctx context.Context) {
	if st, ok := ctx.Value(streamKey{}).(*stream); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.busy = true
	}
}
