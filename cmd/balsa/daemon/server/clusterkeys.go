package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/leader/clusterkeys"
)

// podKeys is which key signed the tokens of this machine's pods, before and
// after there is a node that knows.
type podKeys struct {
	*notifier
	pods atomic.Pointer[join.Pods]
}

// tokenKey is for cluster.Config.PodsHold.
func (k *podKeys) tokenKey() string {
	if pods := k.pods.Load(); pods != nil {
		return (*pods).TokenKey()
	}
	return ""
}

// podsHold is for cluster.Config: nil when no pods run here.
func (s *server) podsHold() func() string {
	if s.cfg.DisableAgent {
		return nil
	}
	return s.podKeys.tokenKey
}

// tokenKeyID is the ID of the key that signs tokens here now.
func (s *server) tokenKeyID() string { return pki.KeyID(s.pki.ServiceAccountKey().Public()) }

// followPods has the tokens of this machine's pods signed by the key that signs
// here, at once when that changes, and tells the cluster's service.
func (s *server) followPods(pods join.Pods) {
	s.podKeys.pods.Store(&pods)
	s.parts.Keep("keys of pods' tokens", func(ctx context.Context) error {
		for {
			keys, tokens := s.pki.Changed(), pods.TokenKeyChanged() // before looking
			pods.UseTokenKey(s.tokenKeyID())
			s.podKeys.fire()
			select {
			case <-ctx.Done():
				return nil
			case <-keys:
			case <-tokens:
			}
		}
	})
}

// followTrust cuts the connections of members and clients whose CA is not
// trusted any more.
func (s *server) followTrust(ctx context.Context) error {
	var last []string
	for {
		changed, now := s.pki.Changed(), s.pki.Trusts()
		if slices.ContainsFunc(last, func(pin string) bool { return !slices.Contains(now, pin) }) {
			s.network.DropUntrusted()
			s.log.Info("the retired CA is not trusted here any more; connections that were made with its certificates are closed", "connections", s.port.DropUntrusted())
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// publishedKeys are what controllers publish of the cluster's keys.
func (s *server) publishedKeys() clusterkeys.Source {
	return clusterkeys.Source{RootCA: s.pki.CA, Changed: s.pki.Changed, Stale: func(token []byte) bool {
		by := signedBy(string(token))
		return by != "" && by != s.tokenKeyID()
	}}
}

// signedBy is the ID of the key that signed a token, by its header; empty when
// that names none.
func signedBy(jwt string) string {
	header, _, _ := strings.Cut(jwt, ".")
	data, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return ""
	}
	var h struct {
		KeyID string `json:"kid"`
	}
	_ = json.Unmarshal(data, &h) // what is no header names no key
	return h.KeyID
}

// staleSecrets names the token Secrets that a key signed. It lists them all: a
// rotation asks, at its end.
func (s *server) staleSecrets(ctx context.Context, keyID string) (stale []string, err error) {
	if s.api == nil {
		return nil, errors.New("the API has not started yet")
	}
	client, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "balsa:certificates", Groups: []string{"system:masters"}}))
	if err != nil {
		return nil, err
	}
	options := metav1.ListOptions{Limit: 500, FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()}
	for {
		list, err := client.CoreV1().Secrets("").List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("token Secrets: %w", err)
		}
		for i := range list.Items {
			secret := &list.Items[i]
			if signedBy(string(secret.Data[corev1.ServiceAccountTokenKey])) == keyID {
				stale = append(stale, secret.Namespace+"/"+secret.Name)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return stale, nil
		}
	}
}
