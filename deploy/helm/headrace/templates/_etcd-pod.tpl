{{/* The pod template of a bundled etcd member, before podTemplate is merged over it. */}}
{{- define "headrace.etcdPod" -}}
{{- $root := .root -}}
{{- $etcd := .root.Values.etcd.bundled -}}
{{- $domain := include "headrace.podDomain" . -}}
{{- $scheme := include "headrace.etcdScheme" .root -}}
metadata:
  labels:
    {{- include "headrace.podLabels" . | nindent 4 }}
  {{- with $etcd.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "headrace.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 60
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "headrace.podSecurity" $root | nindent 4 }}
  {{- include "headrace.scheduling" . | nindent 2 }}
  {{- with $root.Values.recovery.name }}
  initContainers:
    {{- include "headrace.etcdRestore" $root | nindent 4 }}
  {{- end }}
  containers:
    - name: etcd
      image: {{ include "headrace.image" (dict "image" $etcd.image "tag" "") }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [etcd]
      env:
        - name: ETCD_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        - {name: ETCD_DATA_DIR, value: /var/lib/etcd/data}
        - {name: ETCD_INITIAL_CLUSTER, value: {{ include "headrace.etcdInitialCluster" $root | quote }}}
        - {name: ETCD_INITIAL_CLUSTER_STATE, value: {{ $etcd.initialClusterState }}}
        - {name: ETCD_INITIAL_CLUSTER_TOKEN, value: {{ include "headrace.etcdToken" $root | quote }}}
        - {name: ETCD_LISTEN_PEER_URLS, value: {{ printf "%s://%s:2380" $scheme $root.Values.listenHost | quote }}}
        - {name: ETCD_INITIAL_ADVERTISE_PEER_URLS, value: {{ printf "%s://$(ETCD_NAME).%s:2380" $scheme $domain | quote }}}
        - {name: ETCD_LISTEN_CLIENT_URLS, value: {{ printf "%s://%s:2379" $scheme $root.Values.listenHost | quote }}}
        - {name: ETCD_ADVERTISE_CLIENT_URLS, value: {{ printf "%s://$(ETCD_NAME).%s:2379" $scheme $domain | quote }}}
        - {name: ETCD_LISTEN_METRICS_URLS, value: {{ printf "http://%s:2381" $root.Values.listenHost | quote }}}
        - {name: ETCD_AUTO_COMPACTION_MODE, value: periodic}
        - {name: ETCD_AUTO_COMPACTION_RETENTION, value: 10m}
        - {name: ETCD_QUOTA_BACKEND_BYTES, value: {{ int64 $etcd.quotaBytes | quote }}}
        - {name: ETCD_LOG_LEVEL, value: warn}
        {{- if include "headrace.etcdTls" $root }}
        {{- range $use := list "" "PEER_" }}
        - {name: ETCD_{{ $use }}CERT_FILE, value: /etc/headrace-tls/tls.crt}
        - {name: ETCD_{{ $use }}KEY_FILE, value: /etc/headrace-tls/tls.key}
        {{- end }}
        {{- /* Of peers alone: with it the client port would require certificates. */}}
        - {name: ETCD_PEER_TRUSTED_CA_FILE, value: /etc/headrace-tls/ca.crt}
        - {name: ETCD_PEER_CLIENT_CERT_AUTH, value: "true"}
        - {name: ETCDCTL_ENDPOINTS, value: {{ printf "https://$(ETCD_NAME).%s:2379" $domain | quote }}}
        {{- end }}
        {{- with include "headrace.etcdctlEnvironment" $root }}{{ nindent 8 (trim .) }}{{ end }}
        {{- with $etcd.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: client, containerPort: 2379}
        - {name: peer, containerPort: 2380}
        - {name: metrics, containerPort: 2381}
      startupProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 120
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      resources:
        {{- toYaml $etcd.resources | nindent 8 }}
      securityContext:
        {{- include "headrace.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /var/lib/etcd}
        {{- if include "headrace.etcdTls" $root }}
        - {name: tls, mountPath: /etc/headrace-tls, readOnly: true}
        {{- end }}
  {{- if include "headrace.etcdTls" $root }}
  volumes:
    - name: tls
      secret: {secretName: {{ include "headrace.tlsSecret" $root }}, defaultMode: 0440}
  {{- end }}
{{- end -}}
