package volume

import (
	"context"
	"fmt"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	defaultTokenSeconds = 3600
	// maxTokenAge is after how long even a token that lives longer is replaced.
	maxTokenAge = 24 * time.Hour
	// tokenRetry is how soon a failed refresh is tried again while the old token is still good.
	tokenRetry = 10 * time.Second
)

// token is a service-account token of one volume source of one pod.
type token struct {
	value   string
	asked   time.Time // all three by the wall clock, which the servers judge a token by
	refresh time.Time // when to ask for the next one
	expires time.Time
}

// clockSlack is how much the clock may go back before a token counts as one of the future, which servers refuse.
const clockSlack = time.Minute

// fresh reports whether the next token need not be asked for yet. A clock that went back makes a token one of the future.
func (t *token) fresh(now time.Time) bool {
	return now.Before(t.refresh) && now.After(t.asked.Add(-clockSlack))
}

// tokenFor returns the token for source, asking for a new one when old has reached 80 % of its life, or when another key
// signs tokens now. A refresh that
// fails keeps old as long as it is valid.
func (m *Manager) tokenFor(ctx context.Context, pod *v1.Pod, source *v1.ServiceAccountTokenProjection, old *token) (*token, error) {
	now, wanted := time.Now().Round(0), m.wantedKey()
	other := func(t *token) bool { return wanted != "" && keyOf(t.value) != wanted }
	if old != nil && old.fresh(now) && !other(old) {
		return old, nil
	}
	fresh, err := m.requestToken(ctx, pod, source)
	if err == nil {
		if other(fresh) {
			fresh.refresh = now.Add(keyRetry)
		}
		return fresh, nil
	}
	if old != nil && now.Before(old.expires) {
		m.log.Warn("cannot refresh a service-account token; the pod keeps the former one until the next try", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		return &token{value: old.value, asked: old.asked, refresh: now.Add(tokenRetry), expires: old.expires}, nil
	}
	return nil, err
}

func (m *Manager) requestToken(ctx context.Context, pod *v1.Pod, source *v1.ServiceAccountTokenProjection) (*token, error) {
	seconds := int64(defaultTokenSeconds)
	if source.ExpirationSeconds != nil {
		seconds = *source.ExpirationSeconds
	}
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		req.Spec.Audiences = []string{source.Audience}
	}
	asked := time.Now().Round(0)
	got, err := m.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, req, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	}
	expires := got.Status.ExpirationTimestamp.Time
	return &token{value: got.Status.Token, asked: asked, refresh: refreshTime(asked, expires), expires: expires}, nil
}

// refreshTime is 80 % of the way from asked to expires, at most maxTokenAge.
func refreshTime(asked, expires time.Time) time.Time {
	life := expires.Sub(asked) * 4 / 5
	return asked.Add(min(max(life, time.Second), maxTokenAge))
}
