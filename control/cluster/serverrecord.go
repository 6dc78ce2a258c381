package cluster

import (
	"context"
	"slices"

	"github.com/balsahq/balsa/raftstore"
)

// MembersPrefix is where the records of servers are, by server ID.
const MembersPrefix = membersPrefix

// KeptOverRestore are the prefixes that a restored snapshot does not replace: the members, the join tokens, the gossip
// keys, the CA and the leadership are those of the running cluster.
func KeptOverRestore() []string {
	return []string{membersPrefix, nodesPrefix, removedPrefix, revokedPrefix, tokensPrefix, gossipKey, leaderPrefix, rotationKey}
}

// sameContent reports whether two records are equal apart from the time of joining.
func (r MemberRecord) sameContent(o MemberRecord) bool {
	return r.Name == o.Name && r.Version == o.Version && r.Protocol == o.Protocol && slices.Equal(r.Addresses, o.Addresses) && slices.Equal(r.Names, o.Names) && r.Holds.Equal(o.Holds)
}

// Announce keeps the record of this server true: its name, addresses and
// version are its own to say. It writes nothing when that is what the store has.
// A server whose record was removed is not recorded again.
func Announce(ctx context.Context, store Store, mine MemberRecord, begins bool) error {
	key := membersPrefix + store.ServerID()
	for {
		v, err := store.Barrier(ctx)
		if err != nil {
			return err
		}
		rec, rev, err := read[MemberRecord](v, key)
		if err != nil {
			return err
		}
		switch {
		case rec == nil && !begins:
			return nil
		case rec != nil:
			if rec.sameContent(mine) {
				return nil
			}
			mine.Joined = rec.Joined
		}
		op, err := put(key, mine)
		if err != nil {
			return err
		}
		res, err := store.Txn(ctx, raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(key, rev)}, Success: []raftstore.Op{op}})
		if err != nil || res.Succeeded {
			return err
		}
	}
}

// ForgetMembers removes the records of servers, join tokens and leaderships: what a state that begins a new generation
// of a cluster must not bring along. Agents stay, and so do servers that were removed for good.
func ForgetMembers(ctx context.Context, store Store) error {
	var ops []raftstore.Op
	for _, prefix := range []string{membersPrefix, tokensPrefix, leaderPrefix} {
		ops = append(ops, raftstore.Op{Type: raftstore.OpDelete, Key: prefix, RangeEnd: raftstore.PrefixEnd(prefix)})
	}
	_, err := store.Txn(ctx, raftstore.Txn{Success: ops})
	return err
}
