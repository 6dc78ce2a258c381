package serviceaccount

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

// maxBase is the part of an account's name that fits into the name of its Secret.
const maxBase = 240

type secrets struct {
	env      workqueue.Env
	accounts corelisters.ServiceAccountLister
}

// NewSecrets returns the controller that gives every ServiceAccount a token Secret and names it in the account, as
// Kubernetes did until v1.23. The controller of NewTokens fills the Secret, and deletes it with the account.
func NewSecrets(env workqueue.Env, workers int) (workqueue.Runner, error) {
	sas := env.Informers.Core().V1().ServiceAccounts()
	c := &secrets{env: env, accounts: sas.Lister()}
	loop := workqueue.NewLoop(env, workers, c.reconcile)
	return loop, workqueue.Watch(loop, sas.Informer(), func(_, now *v1.ServiceAccount) {
		if now != nil {
			loop.Add(workqueue.KeyOf(now))
		}
	})
}

func (c *secrets) reconcile(ctx context.Context, key workqueue.Key) error {
	sa, err := c.accounts.ServiceAccounts(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || sa.DeletionTimestamp != nil {
		return err
	}
	want := secretOf(sa)
	if slices.ContainsFunc(sa.Secrets, func(r v1.ObjectReference) bool { return r.Name == want.Name }) {
		return nil
	}
	_, err = c.env.Client.CoreV1().Secrets(sa.Namespace).Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) || controllerref.NamespaceEnding(err) {
		return nil
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	sa = sa.DeepCopy()
	sa.Secrets = append(sa.Secrets, v1.ObjectReference{Name: want.Name})
	_, err = c.env.Client.CoreV1().ServiceAccounts(sa.Namespace).Update(ctx, sa, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// secretOf is the Secret of an account, not filled. Its name follows from the account's name and UID, so that an attempt
// made again makes no second one.
func secretOf(sa *v1.ServiceAccount) *v1.Secret {
	sum := sha256.Sum256([]byte(sa.UID))
	base := sa.Name[:min(len(sa.Name), maxBase)]
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: sa.Namespace, Name: base + "-token-" + hex.EncodeToString(sum[:])[:5],
			Annotations: map[string]string{v1.ServiceAccountNameKey: sa.Name, v1.ServiceAccountUIDKey: string(sa.UID)},
		},
		Type: v1.SecretTypeServiceAccountToken,
	}
}
