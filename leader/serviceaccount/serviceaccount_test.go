package serviceaccount

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/clusterkeys"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// start runs a controller against a fake API until the test ends.
func start(t *testing.T, build func(workqueue.Env) (workqueue.Runner, error), objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(objects...)
	workqueuetest.Start(t, client, build)
	return client
}

func TestEveryNamespaceGetsItsAccountAndKeepsIt(t *testing.T) {
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return New(e, 1) },
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}, Status: v1.NamespaceStatus{Phase: v1.NamespaceTerminating}})
	there := func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts("a").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	}
	workqueuetest.Eventually(t, "created", there)
	if err := client.CoreV1().ServiceAccounts("a").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "created again", there)
	if _, err := client.CoreV1().ServiceAccounts("ending").Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
		t.Fatal("an ending namespace got an account")
	}
}

func secret(name, account, uid string) *v1.Secret {
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{v1.ServiceAccountNameKey: account}}, Type: v1.SecretTypeServiceAccountToken}
	if uid != "" {
		s.Annotations[v1.ServiceAccountUIDKey] = uid
	}
	return s
}

func TestTokenSecretsAreFilledOrGo(t *testing.T) {
	sign := func(sa *v1.ServiceAccount, s *v1.Secret) (string, error) {
		return "token of " + sa.Name + " in " + s.Name, nil
	}
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) {
		return NewTokens(e, 1, sign, clusterkeys.Source{RootCA: func() []byte { return []byte("ca") }})
	},
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "robot", UID: "u"}},
		secret("good", "robot", ""), secret("of-another", "robot", "before"), secret("of-nobody", "ghost", ""))
	workqueuetest.Eventually(t, "filled", func(ctx context.Context) (bool, error) {
		s, err := client.CoreV1().Secrets("a").Get(ctx, "good", metav1.GetOptions{})
		return err == nil && string(s.Data["token"]) == "token of robot in good" && string(s.Data["ca.crt"]) == "ca" && string(s.Data["namespace"]) == "a" && s.Annotations[v1.ServiceAccountUIDKey] == "u", nil
	})
	workqueuetest.Eventually(t, "the others gone", func(ctx context.Context) (bool, error) {
		l, err := client.CoreV1().Secrets("a").List(ctx, metav1.ListOptions{})
		return err == nil && len(l.Items) == 1, nil
	})
}

func TestEveryAccountGetsOneTokenSecretOfItsOwn(t *testing.T) {
	account := func(uid string) *v1.ServiceAccount {
		return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "robot", UID: types.UID(uid)}}
	}
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewSecrets(e, 1) }, account("u"))
	references := func(count int) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			sa, err := client.CoreV1().ServiceAccounts("a").Get(ctx, "robot", metav1.GetOptions{})
			l, listErr := client.CoreV1().Secrets("a").List(ctx, metav1.ListOptions{})
			return err == nil && listErr == nil && len(sa.Secrets) == 1 && len(l.Items) == count &&
				slices.ContainsFunc(l.Items, func(s v1.Secret) bool {
					return s.Name == sa.Secrets[0].Name && s.Type == v1.SecretTypeServiceAccountToken && s.Annotations[v1.ServiceAccountUIDKey] == string(sa.UID)
				}), nil
		}
	}
	workqueuetest.Eventually(t, "made and named", references(1))
	if err := client.CoreV1().ServiceAccounts("a").Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ServiceAccounts("a").Create(t.Context(), account("another"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the new account has its own", references(2))
	long := account("u")
	long.Name = strings.Repeat("x", 253)
	if name := secretOf(long).Name; len(name) > 253 {
		t.Errorf("the name %s is too long", name)
	}
}

func TestTokenSecretsFollowARotation(t *testing.T) {
	var mu sync.Mutex
	key, changed := "k1", make(chan struct{})
	now := func() (string, chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		return key, changed
	}
	keys := clusterkeys.Source{
		RootCA:  func() []byte { k, _ := now(); return []byte("ca of " + k) },
		Stale:   func(token []byte) bool { k, _ := now(); return !strings.HasSuffix(string(token), k) },
		Changed: func() <-chan struct{} { _, c := now(); return c },
	}
	sign := func(*v1.ServiceAccount, *v1.Secret) (string, error) { k, _ := now(); return "signed with " + k, nil }
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewTokens(e, 1, sign, keys) },
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "robot", UID: "u"}}, secret("s", "robot", ""))
	holds := func(k string) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			s, err := client.CoreV1().Secrets("a").Get(ctx, "s", metav1.GetOptions{})
			return err == nil && string(s.Data["token"]) == "signed with "+k && string(s.Data["ca.crt"]) == "ca of "+k, nil
		}
	}
	workqueuetest.Eventually(t, "filled", holds("k1"))
	mu.Lock()
	key = "k2"
	close(changed)
	changed = make(chan struct{})
	mu.Unlock()
	workqueuetest.Eventually(t, "signed anew", holds("k2"))
}
