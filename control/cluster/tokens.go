package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/token"
	"github.com/balsahq/balsa/raftstore"
)

const (
	// DefaultTokenLife is how long a token lives unless told otherwise.
	DefaultTokenLife = 24 * time.Hour
	maxTokenLife     = 365 * 24 * time.Hour
	maxTokens        = 1024
	expiredKept      = 24 * time.Hour // so that its error says "expired", not "unknown"
	maxDescription   = 256
)

// ErrToken: a token does not admit. The wrapped text says why and what to do, never the secret.
var ErrToken = errors.New("join refused")

// tokenRecord is what the store keeps of a token.
type tokenRecord struct {
	Role        string    `json:"role"`
	SHA256      string    `json:"sha256"`
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	Description string    `json:"description,omitempty"`
	Used        int32     `json:"used"`
	Uses        int32     `json:"uses,omitempty"`     // 0: any number
	Replaces    string    `json:"replaces,omitempty"` // the one node whose name it gives away
}

// judge says why a token does not admit a machine of a role. Whether it is used up is for consume to say: a machine
// that joined with it may do so again.
func (r *tokenRecord) judge(t token.Token, server bool, now time.Time) error {
	fresh := "make a new one with `balsa token create` on a server"
	switch {
	case r == nil:
		return fmt.Errorf("%w: token %s is not known here, or was revoked: %s", ErrToken, t.ID, fresh)
	case !t.Matches(r.SHA256):
		return fmt.Errorf("%w: the secret of token %s is wrong: copy the whole token, or %s", ErrToken, t.ID, fresh)
	case now.After(r.Expires):
		return fmt.Errorf("%w: token %s expired at %s: %s", ErrToken, t.ID, r.Expires.UTC().Format(time.RFC3339), fresh)
	case (r.Role == roleServer) != server || t.Server != server:
		return fmt.Errorf("%w: token %s is for joining as %s: run `balsa %s --join …`, or make another one with `balsa token create --role %s`", ErrToken, t.ID, r.Role, r.Role, roleName(server))
	}
	return nil
}

const roleServer, roleAgent = "server", "agent"

func roleName(server bool) string {
	if server {
		return roleServer
	}
	return roleAgent
}

// CreateToken implements clusterpb.ClusterServer.
func (s *Service) CreateToken(ctx context.Context, r *clusterpb.CreateTokenRequest) (*clusterpb.CreateTokenResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	life := time.Duration(r.TtlSeconds) * time.Second
	if r.TtlSeconds == 0 {
		life = DefaultTokenLife
	}
	if r.Role != clusterpb.Role_ROLE_SERVER && r.Role != clusterpb.Role_ROLE_AGENT || r.TtlSeconds < 0 || r.TtlSeconds > int64(maxTokenLife/time.Second) || len(r.Description) > maxDescription || r.Uses < 0 {
		return nil, status.Error(codes.InvalidArgument, "a token is for a server or an agent, lives at most a year and is described in at most 256 bytes")
	}
	if r.Replaces != "" {
		if err := s.cfg.PKI.CheckNodeName(r.Replaces); err != nil {
			return nil, wire(err)
		}
		if r.Role != clusterpb.Role_ROLE_AGENT || r.Uses > 1 {
			return nil, status.Error(codes.InvalidArgument, "a token that replaces a node is for one agent")
		}
		r.Uses = 1
	}
	t, info, err := s.NewToken(ctx, TokenOptions{Server: r.Role == clusterpb.Role_ROLE_SERVER, Life: life, Description: r.Description, Uses: r.Uses, Replaces: r.Replaces})
	if err != nil {
		return nil, wire(err)
	}
	return &clusterpb.CreateTokenResponse{Token: t.Text(), Info: info, Servers: s.serverList(s.cfg.Store.View())}, nil
}

// TokenOptions describe a new token.
type TokenOptions struct {
	Server      bool
	Life        time.Duration
	Description string
	Uses        int32
	Replaces    string // an agent's name, "" for a token with which no name changes hands
}

// NewToken makes a token and keeps its hash. Tokens that expired a day ago are swept.
func (s *Service) NewToken(ctx context.Context, o TokenOptions) (token.Token, *clusterpb.TokenInfo, error) {
	t, err := token.New(o.Server, s.Pin())
	if err != nil {
		return t, nil, err
	}
	now := s.cfg.Now().UTC()
	rec := tokenRecord{Role: roleName(o.Server), SHA256: t.Hash(), Created: now, Expires: now.Add(o.Life), Description: o.Description, Uses: o.Uses, Replaces: o.Replaces}
	err = s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		key := tokensPrefix + t.ID
		op, err := put(key, rec)
		txn := raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(key, 0)}, Success: []raftstore.Op{op}}
		all := readAll[tokenRecord](v, tokensPrefix)
		for id, old := range all {
			if now.After(old.Expires.Add(expiredKept)) {
				txn.Success = append(txn.Success, del(tokensPrefix+id))
			}
		}
		if len(all)-len(txn.Success)+1 >= maxTokens {
			return nil, status.Error(codes.ResourceExhausted, "there are 1024 tokens: revoke some with `balsa token rm`")
		}
		return &txn, err
	})
	return t, rec.info(t.ID), err
}

func (r *tokenRecord) info(id string) *clusterpb.TokenInfo {
	info := &clusterpb.TokenInfo{Id: id, Role: clusterpb.Role_ROLE_AGENT, Created: r.Created.UnixMilli(), Expires: r.Expires.UnixMilli(),
		Description: r.Description, UsesLeft: -1, Used: r.Used, Replaces: r.Replaces}
	if r.Role == roleServer {
		info.Role = clusterpb.Role_ROLE_SERVER
	}
	if r.Uses > 0 {
		info.UsesLeft = r.Uses - r.Used
	}
	return info
}

// ListTokens implements clusterpb.ClusterServer.
func (s *Service) ListTokens(ctx context.Context, _ *clusterpb.ListTokensRequest) (*clusterpb.ListTokensResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	v, err := s.cfg.Store.Barrier(ctx)
	if err != nil {
		return nil, wire(err)
	}
	answer := &clusterpb.ListTokensResponse{}
	for id, rec := range readAll[tokenRecord](v, tokensPrefix) {
		answer.Tokens = append(answer.Tokens, rec.info(id))
	}
	slices.SortFunc(answer.Tokens, func(a, b *clusterpb.TokenInfo) int { return strings.Compare(a.Id, b.Id) })
	return answer, nil
}

// RevokeToken implements clusterpb.ClusterServer.
func (s *Service) RevokeToken(ctx context.Context, r *clusterpb.RevokeTokenRequest) (*clusterpb.RevokeTokenResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	if !token.IsID(r.Id) {
		return nil, status.Error(codes.InvalidArgument, "a token's ID has 8 hex digits: see `balsa token ls`")
	}
	res, err := s.cfg.Store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{del(tokensPrefix + r.Id)}})
	if err != nil {
		return nil, wire(err)
	}
	if res.Results[0].Deleted == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no token %s: see `balsa token ls`", r.Id)
	}
	return &clusterpb.RevokeTokenResponse{}, nil
}

// checkToken judges the token of a joiner. Failures are counted by source, and a source's first one is logged.
func (s *Service) checkToken(ctx context.Context, who caller, text string, server bool) (token.Token, error) {
	if !s.failed.Allow(who.from) {
		return token.Token{}, status.Error(codes.ResourceExhausted, "too many failed joins from this address: wait a minute")
	}
	t, err := token.Parse(text)
	if err == nil && !slices.Contains(s.cfg.PKI.Trusts(), t.Pin) {
		err = fmt.Errorf("%w: the token is of another cluster, or was made before this cluster's CA was rotated: its CA is %s, this cluster's is %s: join a server of that cluster, or make a token here with `balsa token create`", ErrToken, t.Pin, s.Pin())
	}
	if err == nil {
		v, berr := s.cfg.Store.Barrier(ctx)
		if berr != nil {
			return t, berr
		}
		rec, _, rerr := read[tokenRecord](v, tokensPrefix+t.ID)
		if rerr != nil {
			return t, rerr
		}
		err = rec.judge(t, server, s.cfg.Now())
	}
	if err != nil && s.failed.Failed(who.from) {
		s.cfg.Logger.Warn("a machine failed to join; more failures from there within ten minutes are not logged", "from", who.from, "err", err)
	}
	return t, err
}

// consume adds to a transaction that a token was used once more.
func consume(v *raftstore.View, t token.Token, txn *raftstore.Txn) error {
	key := tokensPrefix + t.ID
	rec, rev, err := read[tokenRecord](v, key)
	if err != nil {
		return err
	}
	if rec == nil || rec.Uses > 0 && rec.Used >= rec.Uses {
		return fmt.Errorf("%w: token %s was revoked or used up just now: make a new one with `balsa token create` on a server", ErrToken, t.ID)
	}
	rec.Used++
	op, err := put(key, rec)
	txn.Compares = append(txn.Compares, raftstore.ModRevisionIs(key, rev))
	txn.Success = append(txn.Success, op)
	return err
}
