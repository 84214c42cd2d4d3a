import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.security.authorizer.AclEntry;

/** Prints each type of resource with the operations that brokers check on it. */
public class AclOperations {
    public static void main(String[] args) {
        for (ResourceType type : ResourceType.values()) {
            if (type != ResourceType.UNKNOWN && type != ResourceType.ANY) {
                StringBuilder line = new StringBuilder(type.name());
                for (AclOperation operation : AclEntry.supportedOperations(type)) {
                    line.append(' ').append(operation.name());
                }
                System.out.println(line);
            }
        }
    }
}
