package autoscaling

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
)

const (
	// authenticationConfig holds the cluster's front-proxy and client CAs, in kube-system.
	authenticationConfig = "extension-apiserver-authentication"

	reviewCacheLife = 10 * time.Second
	reviewTimeout   = 10 * time.Second
)

// delegate makes the API server ask the cluster who a caller is and what it may do, as every aggregated server does: the
// aggregator's certificate and headers first, then client certificates, then tokens; then a subject access review.
// Changes of the cluster's CAs are followed. It fails while the cluster's settings cannot be read.
func delegate(ctx context.Context, client kubernetes.Interface, config *genericapiserver.Config) error {
	clientCA, err := dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca",
		metav1.NamespaceSystem, authenticationConfig, "client-ca-file", client)
	if err != nil {
		return fmt.Errorf("follow the client CA: %w", err)
	}
	proxy, err := frontProxy(ctx, client)
	if err != nil {
		return err
	}
	config.Authentication.RequestHeaderConfig = proxy
	for _, ca := range []dynamiccertificates.CAContentProvider{clientCA, proxy.CAContentProvider} {
		if err := config.Authentication.ApplyClientCert(ca, config.SecureServing); err != nil {
			return fmt.Errorf("apply a client CA: %w", err)
		}
	}
	authenticator, definitions, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                          &apiserver.AnonymousAuthConfig{Enabled: true}, // may read health paths, no more
		TokenAccessReviewClient:            client.AuthenticationV1(),
		TokenAccessReviewTimeout:           reviewTimeout,
		WebhookRetryBackoff:                options.DefaultAuthWebhookRetryBackoff(),
		CacheTTL:                           reviewCacheLife,
		ClientCertificateCAContentProvider: clientCA,
		RequestHeaderConfig:                proxy,
	}.New()
	if err != nil {
		return fmt.Errorf("delegate authentication: %w", err)
	}
	config.Authentication.Authenticator = authenticator
	config.OpenAPIConfig.SecurityDefinitions = definitions

	healthPaths, err := path.NewAuthorizer([]string{"/healthz", "/readyz", "/livez"})
	if err != nil {
		return fmt.Errorf("allow the health paths: %w", err)
	}
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(),
		AllowCacheTTL:             reviewCacheLife,
		DenyCacheTTL:              reviewCacheLife,
		WebhookRetryBackoff:       options.DefaultAuthWebhookRetryBackoff(),
	}.New()
	if err != nil {
		return fmt.Errorf("delegate authorisation: %w", err)
	}
	config.Authorization.Authorizer = union.New(healthPaths, reviews)
	return nil
}

// frontProxy follows the cluster's settings for the aggregator: which CA signs its certificate, and which headers name
// the user.
func frontProxy(ctx context.Context, client kubernetes.Interface) (*authenticatorfactory.RequestHeaderConfig, error) {
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy-ca",
		metav1.NamespaceSystem, authenticationConfig, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("follow the front-proxy CA: %w", err)
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationConfig, metav1.NamespaceSystem, client,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	both := &options.DynamicRequestHeaderController{ConfigMapCAController: ca, RequestHeaderAuthRequestController: headers}
	if err := both.RunOnce(ctx); err != nil {
		return nil, fmt.Errorf("read ConfigMap %s/%s, which needs the role extension-apiserver-authentication-reader: %w",
			metav1.NamespaceSystem, authenticationConfig, err)
	}
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   both,
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(both.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(both.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(both.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(both.ExtraHeaderPrefixes),
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(both.AllowedClientNames),
	}, nil
}
