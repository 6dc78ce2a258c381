package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

const gossipKeyBytes = 32

// Keyring are the keys of gossip as the store keeps them. The first one encrypts; Target, when it is set, is the one a
// rotation moves to.
type Keyring struct {
	Version int64     `json:"version"`
	Keys    [][]byte  `json:"keys"`
	Target  []byte    `json:"target,omitempty"`
	Changed time.Time `json:"changed"`
}

func (k *Keyring) proto() *clusterpb.Keyring {
	if k == nil {
		return nil
	}
	return &clusterpb.Keyring{Version: k.Version, Keys: k.Keys}
}

// newGossipKey makes 32 random bytes.
func newGossipKey() []byte {
	b := make([]byte, gossipKeyBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	return b
}

func readKeyring(v *raftstore.View) (*Keyring, error) {
	ring, _, err := read[Keyring](v, gossipKey)
	if err == nil && (ring == nil || len(ring.Keys) == 0) {
		err = errors.New("cluster: the store holds no gossip key yet")
	}
	return ring, err
}

// EnsureKeyring returns the gossip keys in the store, making the first one when there is none: for the server that
// forms a cluster, before it starts gossip.
func EnsureKeyring(ctx context.Context, store Store, now time.Time) (*Keyring, error) {
	for {
		v, err := store.Barrier(ctx)
		if err != nil {
			return nil, err
		}
		if ring, err := readKeyring(v); err == nil || v.Get(gossipKey) != nil {
			return ring, err
		}
		op, err := put(gossipKey, Keyring{Version: 1, Keys: [][]byte{newGossipKey()}, Changed: now.UTC()})
		if err != nil {
			return nil, err
		}
		if _, err := store.Txn(ctx, raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(gossipKey, 0)}, Success: []raftstore.Op{op}}); err != nil {
			return nil, err
		}
	}
}

// FollowKeyring calls apply with the keys of now and at each change, in order, until ctx ends or apply fails.
func FollowKeyring(ctx context.Context, store Store, apply func(Keyring) error) error {
	for seen := int64(0); ctx.Err() == nil; {
		v := store.View()
		ring, rev, err := read[Keyring](v, gossipKey)
		if err != nil {
			return err
		}
		if ring != nil && rev != seen {
			seen = rev
			if err := apply(*ring); err != nil {
				return err
			}
		}
		if err := awaitChange(ctx, store, gossipKey, v.Revision()+1); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// awaitChange returns when a key changed at a revision from `from` on, or might have: the history was compacted.
func awaitChange(ctx context.Context, store Store, key string, from int64) error {
	return awaitRange(ctx, store, raftstore.WatchRequest{Key: key, StartRevision: from})
}

// awaitRange is awaitChange for all keys of a request.
func awaitRange(ctx context.Context, store Store, r raftstore.WatchRequest) error {
	w, err := store.Watch(r)
	if err == nil {
		defer w.Close()
		_, err = w.Next(ctx)
	}
	if errors.Is(err, raftstore.ErrCompacted) || errors.Is(err, raftstore.ErrOverrun) {
		return nil
	}
	return err
}

// GossipKeys implements clusterpb.ClusterServer.
func (s *Service) GossipKeys(_ *clusterpb.GossipKeysRequest, stream clusterpb.Cluster_GossipKeysServer) error {
	ctx := stream.Context()
	if _, err := s.authorize(ctx, managers); err != nil {
		return err
	}
	return wire(FollowKeyring(ctx, s.cfg.Store, func(k Keyring) error { return stream.Send(k.proto()) }))
}

// RotateGossipKey implements clusterpb.ClusterServer.
func (s *Service) RotateGossipKey(ctx context.Context, _ *clusterpb.RotateGossipKeyRequest) (*clusterpb.RotateGossipKeyResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	var version int64
	err := s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		ring, err := readKeyring(v)
		if err != nil {
			return nil, err
		}
		if ring.Target != nil {
			return nil, status.Error(codes.FailedPrecondition, "a rotation is under way: it ends when every live member has the new key")
		}
		ring.Target = newGossipKey()
		ring.Keys = append(ring.Keys, ring.Target)
		version = ring.Version + 1
		return ring.change(v, s.cfg.Now())
	})
	return &clusterpb.RotateGossipKeyResponse{Version: version}, wire(err)
}

func (k *Keyring) change(v *raftstore.View, now time.Time) (*raftstore.Txn, error) {
	k.Version++
	k.Changed = now.UTC()
	op, err := put(gossipKey, k)
	return &raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(gossipKey, v.Get(gossipKey).ModRevision)}, Success: []raftstore.Op{op}}, err
}

// advance returns the next step of a rotation; nil if there is none, or if a member has not finished the last step.
func (k Keyring) advance(members []member.Member, now time.Time) *Keyring {
	if k.Target == nil {
		return nil
	}
	byID := map[member.KeyID][]byte{}
	ring := member.Ring{Primary: member.Fingerprint(k.Keys[0])}
	for _, key := range k.Keys {
		byID[member.Fingerprint(key)] = key
		ring.Keys = append(ring.Keys, member.Fingerprint(key))
	}
	next, wait := member.PlanRotation(ring, member.Fingerprint(k.Target), members, now)
	if wait != "" {
		return nil
	}
	out := Keyring{Version: k.Version, Target: k.Target, Changed: k.Changed}
	ids := slices.DeleteFunc(slices.Clone(next.Keys), func(id member.KeyID) bool { return id == next.Primary })
	for _, id := range append([]member.KeyID{next.Primary}, ids...) {
		out.Keys = append(out.Keys, byID[id])
	}
	if len(out.Keys) == 1 {
		out.Target = nil // over
	}
	return &out
}

// rotate moves a rotation on by the steps that may be taken now.
func (s *Service) rotate(ctx context.Context) error {
	return s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		ring, _, err := read[Keyring](v, gossipKey)
		if err != nil || ring == nil {
			return nil, err
		}
		next := ring.advance(s.cfg.Members.Members(), s.cfg.Now())
		if next == nil {
			return nil, nil
		}
		s.cfg.Logger.Info("the gossip key rotates", "keys", len(next.Keys), "over", next.Target == nil)
		return next.change(v, s.cfg.Now())
	})
}
