package serviceaccount

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

const defaultName = "default"

type accounts struct {
	env        workqueue.Env
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
	loop       *workqueue.Loop[string]
}

// New returns the controller that keeps a default ServiceAccount in every namespace.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	sas := env.Informers.Core().V1().ServiceAccounts()
	c := &accounts{env: env, namespaces: namespaces.Lister(), accounts: sas.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, namespaces.Informer(), func(_, now *v1.Namespace) {
			if now != nil {
				c.loop.Add(now.Name)
			}
		}),
		workqueue.Watch(c.loop, sas.Informer(), func(old, now *v1.ServiceAccount) {
			if now == nil && old.Name == defaultName {
				c.loop.Add(old.Namespace)
			}
		}),
	)
}

func (c *accounts) reconcile(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == v1.NamespaceTerminating {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(defaultName); !apierrors.IsNotFound(err) {
		return err
	}
	sa := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: defaultName}}
	_, err = c.env.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, sa, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || controllerref.NamespaceEnding(err) {
		return nil
	}
	return err
}
