package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Family is an address family of the kernel's tables.
type Family byte

// Families, as the kernel numbers them (NFPROTO_…).
const (
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6
)

// Families are both, in the order in which they are worked on.
var Families = []Family{IPv4, IPv6}

// String is the family as the nft command names it.
func (f Family) String() string {
	if f == IPv4 {
		return "ip"
	}
	return "ip6"
}

// Table is a table and the part of it that is always there.
type Table struct {
	Family Family
	Name   string
	Sets   []Set
	// Chains are made in this order: none comes before one that its rules lead to.
	Chains []Chain
}

// String is the table as the nft command names it.
func (t *Table) String() string { return t.Family.String() + " " + t.Name }

// SetFlags are properties of a set (NFT_SET_…).
type SetFlags uint32

// Flags of a set.
const (
	Interval SetFlags = 0x4  // elements begin and end ranges
	Map      SetFlags = 0x8  // elements have values
	Timeout  SetFlags = 0x10 // elements may expire
	Dynamic  SetFlags = 0x20 // rules add elements (NFT_SET_EVAL)
	Concat   SetFlags = 0x80 // with Interval: each part of the key is a range of its own (see Set.Parts)
)

// Set is one set, or with the flag Map one map.
type Set struct {
	Name      string
	Flags     SetFlags
	Key, Data nftables.SetDatatype // Data of maps only
	Parts     []uint32             // with Concat: the lengths of the key's parts, in bytes
	Limit     uint32               // of elements; 0: none
	Expires   time.Duration        // how long an element stays that says nothing else; 0: for ever
}

// KeyLen is the length of a key in bytes, as the kernel counts it.
func (s *Set) KeyLen() int { return int(s.Key.Bytes+3) &^ 3 }

// DataLen is the length of a value in bytes, as the kernel counts it. It means nothing for verdicts.
func (s *Set) DataLen() int { return int(s.Data.Bytes+3) &^ 3 }

// HoldsVerdicts tells whether the values of a map are verdicts.
func (s *Set) HoldsVerdicts() bool { return s.Data.Name == nftables.TypeVerdict.Name }

// Chain is one chain with all of its rules.
type Chain struct {
	Name  string
	Rules []Rule
	Hook  *Hook // nil: only other chains lead here
}

// Hook says where packets enter a chain. Packets that leave it undecided are accepted.
type Hook struct {
	Type     nftables.ChainType
	Number   *nftables.ChainHook
	Priority *nftables.ChainPriority
}

// Rule is the expressions of one rule.
type Rule []expr.Any

// expressions returns the rule as the kernel takes it.
func (r Rule) expressions(f Family) ([][]byte, error) {
	out := make([][]byte, len(r))
	for i, e := range r {
		raw, err := expr.Marshal(byte(f), e)
		if err != nil {
			return nil, err
		}
		out[i] = raw
	}
	return out, nil
}

// tag returns the comment of a rule with these expressions, laid out as nft does: kind, length, text.
func tag(expressions [][]byte) []byte {
	digest := sha256.New()
	for _, e := range expressions {
		digest.Write(e)
	}
	text := hex.EncodeToString(digest.Sum(nil)[:6]) + "\x00"
	return append([]byte{0, byte(len(text))}, text...)
}

// Fingerprint returns the name of an empty chain that marks a table as made from this text, which names everything that a
// table was made from.
func Fingerprint(text []byte) string {
	sum := sha256.Sum256(text)
	return "base-" + hex.EncodeToString(sum[:8])
}
