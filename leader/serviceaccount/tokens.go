package serviceaccount

import (
	"bytes"
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/clusterkeys"
	"github.com/balsahq/balsa/leader/workqueue"
)

// Signer makes the long-lived token of an account, bound to the Secret that will hold it.
type Signer func(sa *v1.ServiceAccount, secret *v1.Secret) (string, error)

type tokens struct {
	env      workqueue.Env
	sign     Signer
	keys     clusterkeys.Source
	accounts corelisters.ServiceAccountLister
	secrets  cache.Indexer
	loop     *workqueue.Loop[workqueue.Key]
}

const bySecretAccount = "account"

// NewTokens returns the controller that fills token Secrets, and again when the CA or the key of tokens is rotated.
func NewTokens(env workqueue.Env, workers int, sign Signer, keys clusterkeys.Source) (workqueue.Runner, error) {
	sas := env.Informers.Core().V1().ServiceAccounts()
	secrets := coreinformers.NewFilteredSecretInformer(env.Reader, metav1.NamespaceAll, 0, cache.Indexers{
		bySecretAccount: func(o any) ([]string, error) {
			s, ok := o.(*v1.Secret)
			if !ok {
				return nil, nil
			}
			return []string{accountOf(s).String()}, nil
		},
	}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(v1.SecretTypeServiceAccountToken)).String()
	})
	c := &tokens{env: env, sign: sign, keys: keys, accounts: sas.Lister(), secrets: secrets.GetIndexer()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return workqueue.RunAll(workqueue.Informer(secrets), c.loop, keys.Follow(c.all)), errors.Join(
		secrets.SetTransform(workqueue.Strip),
		workqueue.Watch(c.loop, secrets, func(_, now *v1.Secret) {
			if now != nil {
				c.loop.Add(workqueue.KeyOf(now))
			}
		}),
		workqueue.Watch(c.loop, sas.Informer(), c.accountChanged),
	)
}

func (c *tokens) accountChanged(old, now *v1.ServiceAccount) {
	if old != nil && now != nil && old.UID == now.UID {
		return
	}
	held, err := c.secrets.ByIndex(bySecretAccount, workqueue.KeyOf(workqueue.Newest(old, now)).String())
	if err != nil {
		return // the index exists
	}
	for _, o := range held {
		if s, ok := o.(*v1.Secret); ok {
			c.loop.Add(workqueue.KeyOf(s))
		}
	}
}

// all looks at every token Secret: a key has changed.
func (c *tokens) all() {
	for _, key := range c.secrets.ListKeys() {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err == nil {
			c.loop.Add(workqueue.Key{Namespace: namespace, Name: name})
		}
	}
}

func accountOf(s *v1.Secret) workqueue.Key {
	return workqueue.Key{Namespace: s.Namespace, Name: s.Annotations[v1.ServiceAccountNameKey]}
}

func (c *tokens) reconcile(ctx context.Context, key workqueue.Key) error {
	o, exists, err := c.secrets.GetByKey(key.String())
	secret, ok := o.(*v1.Secret)
	if err != nil || !exists || !ok || secret.DeletionTimestamp != nil {
		return err
	}
	account := accountOf(secret)
	if account.Name == "" {
		return nil
	}
	sa, err := c.find(ctx, account)
	if err != nil {
		return err
	}
	if stale(secret, sa) {
		err := c.env.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return c.fill(ctx, secret, sa)
}

// find asks the API when the cache knows no such account: what follows would delete a Secret. Nil means there is none.
func (c *tokens) find(ctx context.Context, k workqueue.Key) (*v1.ServiceAccount, error) {
	sa, err := c.accounts.ServiceAccounts(k.Namespace).Get(k.Name)
	if apierrors.IsNotFound(err) {
		sa, err = c.env.Client.CoreV1().ServiceAccounts(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return sa, err
}

// stale reports whether the Secret belongs to an account that is gone, or was replaced by another of the same name.
func stale(secret *v1.Secret, sa *v1.ServiceAccount) bool {
	uid := secret.Annotations[v1.ServiceAccountUIDKey]
	return sa == nil || uid != "" && uid != string(sa.UID)
}

func (c *tokens) fill(ctx context.Context, secret *v1.Secret, sa *v1.ServiceAccount) error {
	rootCA, token := c.keys.Bundle(), secret.Data[v1.ServiceAccountTokenKey]
	needCA := len(rootCA) > 0 && !bytes.Equal(secret.Data[v1.ServiceAccountRootCAKey], rootCA)
	needNamespace := len(secret.Data[v1.ServiceAccountNamespaceKey]) == 0
	needToken := len(token) == 0 || c.keys.IsStale(token)
	needUID := secret.Annotations[v1.ServiceAccountUIDKey] == ""
	if !needCA && !needNamespace && !needToken && !needUID {
		return nil
	}
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if needCA {
		secret.Data[v1.ServiceAccountRootCAKey] = rootCA
	}
	if needNamespace {
		secret.Data[v1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if needToken {
		token, err := c.sign(sa, secret)
		if err != nil {
			return err
		}
		secret.Data[v1.ServiceAccountTokenKey] = []byte(token)
	}
	secret.Annotations[v1.ServiceAccountUIDKey] = string(sa.UID)
	_, err := c.env.Client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
